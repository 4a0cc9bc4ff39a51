"""Judge the skips of a test run: each must be allowed, with its reason, in tests/allowed_absent.toml.

``python .ci/skips.py SKIPS ALLOWED``: SKIPS holds one JSON object per skipped test, as tests/conftest.py writes them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path


def judge(skips: list[dict[str, str]], allowed: list[dict[str, str]]) -> list[str]:
    """Return one sentence for each skip that no entry allows.

    An entry allows the tests that its ``tests`` pattern matches when the skip's reason contains its ``reason``.
    """
    return [
        f"{skip['test']} was skipped ({skip['reason']}), which tests/allowed_absent.toml does not allow"
        for skip in skips
        if not any(fnmatchcase(skip["test"], entry["tests"]) and entry["reason"] in skip["reason"] for entry in allowed)
    ]


def main() -> int:
    """Read both files and say what is not allowed."""
    skips = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    allowed = tomllib.loads(Path(sys.argv[2]).read_text(encoding="utf-8")).get("absent", [])
    complaints = judge(skips, allowed)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
