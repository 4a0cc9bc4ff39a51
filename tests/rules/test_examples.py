"""Every law is tried with more examples in a long run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).parents[2]
# The profiles themselves.
PROFILES = TREE / "tests/conftest.py"


def fixed(text: str) -> list[int]:
    """The lines where a number of examples is a plain number."""
    return [
        node.value.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.keyword) and node.arg == "max_examples" and isinstance(node.value, ast.Constant)
    ]


def test_no_law_has_a_number_of_examples_that_stays_the_same_in_a_long_run() -> None:
    found = {
        str(path.relative_to(TREE)): lines
        for path in sorted((TREE / "tests").rglob("*.py"))
        if path != PROFILES and (lines := fixed(path.read_text()))
    }
    assert found == {}, "write max_examples=examples(60), of tests.examples_count"
    assert fixed("settings(max_examples=60)") == [1]


def test_a_long_run_multiplies_them() -> None:
    code = "import tests.conftest; from tests.examples_count import examples; print(examples(60))"

    def said(**more: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "YARD_LONG"} | more
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=TREE, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert (said(), said(YARD_LONG="1")) == ("60", "3000")
