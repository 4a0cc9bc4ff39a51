"""Reads ``constraint`` of the job file: which labels the nodes of a stage must have, in Slurm's notation.

``ib&(a100|h100)``: a word alone is the name or the value of a label, ``rack=r2`` a label with its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import Final

from django.utils.translation import gettext as _

from controlplane.jobs.values import Unacceptable, shown

LONGEST: Final = 1000
MOST: Final = 64
"""So many words, and so many groups once it is written as groups that are joined by *and*; in these four times as many
labels."""
DEEPEST: Final = 8

Groups = tuple[tuple[str, ...], ...]
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:+-]{0,62}(?:=[A-Za-z0-9][A-Za-z0-9._/:+-]{0,62})?|[&|()]")


def groups(value: object) -> Groups:
    """Return the groups, of each of which a node must have one label, as :attr:`Stage.only` has them.

    Raises Unacceptable with a sentence for whatever cannot be read.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
        raise Unacceptable(_("must be words with & or | between, such as {example}").format(example="ib&(a100|h100)"))
    if re.search(r"[*\[\]]", value):
        raise Unacceptable(_("counts of nodes (a*2) and sets ([a|b]) are not known; use topology, or several stages"))
    tokens = _TOKEN.findall(value)
    if "".join(tokens) != re.sub(r"\s+", "", value) or re.search(r"[^\s&|()]\s+[^\s&|()]", value):
        said = _("must be words with & or | between, such as {example}, not {value}")
        raise Unacceptable(said.format(example="ib&(a100|h100)", value=shown(value)))
    if sum(token not in "&|()" for token in tokens) > MOST:
        raise Unacceptable(_("may have at most {most} words").format(most=MOST))
    tokens.reverse()
    found = _expression(tokens, value, 0)
    if tokens:
        raise Unacceptable(_("has a closing bracket too many: {value}").format(value=shown(value)))
    read = tuple(sorted({tuple(sorted(set(group))) for group in found}))
    if len(read) > MOST or sum(map(len, read)) > 4 * MOST:
        raise Unacceptable(_("is too long when written as groups that are joined by &; use fewer words"))
    return read


def written(groups: Iterable[Iterable[str]]) -> str:
    """Return groups as an expression that is read as these groups; empty for none."""
    found = []
    for group in groups:
        words = [label.removeprefix("*=") for label in group if not label.endswith("=*")]
        found.append(words[0] if len(words) == 1 else f"({'|'.join(words)})")
    return "&".join(found)


def _expression(tokens: list[str], value: str, depth: int) -> Groups:
    """Read terms with one operator between them; ``tokens`` are taken from the end."""
    if depth > DEEPEST:
        raise Unacceptable(_("may have at most {most} brackets inside each other").format(most=DEEPEST))
    terms, operators = [_term(tokens, value, depth)], set[str]()
    while tokens and tokens[-1] in "&|":
        operators.add(tokens.pop())
        terms.append(_term(tokens, value, depth))
    if len(operators) > 1:
        raise Unacceptable(
            _("needs brackets where & and | stand together: a&(b|c), not {value}").format(value=shown(value))
        )
    if operators == {"|"}:
        size = 1
        for term in terms:
            size *= len(term)
        if size > MOST:
            raise Unacceptable(_("is too long when written as groups that are joined by &; use fewer words"))
        return tuple(tuple(word for group in chosen for word in group) for chosen in product(*terms))
    return tuple(group for term in terms for group in term)


def _term(tokens: list[str], value: str, depth: int) -> Groups:
    token = tokens.pop() if tokens else ""
    if token == "(":
        found = _expression(tokens, value, depth + 1)
        if not tokens or tokens.pop() != ")":
            raise Unacceptable(_("lacks a closing bracket: {value}").format(value=shown(value)))
        return found
    if token in ("", "&", "|", ")"):
        raise Unacceptable(_("lacks a word beside an operator or a bracket: {value}").format(value=shown(value)))
    return ((token,),) if "=" in token else ((f"*={token}", f"{token}=*"),)
