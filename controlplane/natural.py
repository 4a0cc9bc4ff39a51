"""Natural order of names: n2 before n10."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile("[0-9]+")
# The same in SQL, for rows in this order: PostgreSQL is not always built with ICU, whose collations could do it.
# ``tests/record/test_natural.py`` compares the two.
FUNCTION: Final = """
CREATE FUNCTION natural_key(name text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (
    SELECT coalesce(string_agg(CASE WHEN part[1] IS NULL THEN part[2]
                    ELSE lpad(length(digits)::text, 3, '0') || digits END, '' ORDER BY place), '') || ' ' || name
    FROM regexp_matches(name, '([0-9]+)|([^0-9]+)', 'g') WITH ORDINALITY AS found(part, place),
         LATERAL (SELECT ltrim(part[1], '0') AS digits) AS number
)
"""


def natural_key(name: str) -> str:
    """Return a sort key for natural order: each number is preceded by its number of digits.

    Names have distinct keys: if only leading zeros differ, the name itself decides.
    """

    def counted(found: re.Match[str]) -> str:
        digits = found[0].lstrip("0")
        return f"{len(digits):03}{digits}"

    return f"{_NUMBER.sub(counted, name)} {name}"
