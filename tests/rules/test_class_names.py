"""One name, one meaning: no two classes have the same name, unless both are records of the same noun."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from tests.rules.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agents", "controlplane", "deploy", "scheduler", "switchyard")
# Django and msgspec look for these names.
REQUIRED = {"Command", "Config", "Meta", "Migration"}
# Where a noun has a record of its own: packages that may not import each other, or a shape that has to differ. A job is
# a row, what the API shows of it, what a client reads, and what it sends.
RECORDS = {
    "row": "controlplane/*/models.py",
    "read model": "controlplane/queries/*.py",
    "type of the engine": "scheduler/core/model/*.py",
    "wire shape": "agents/protocol.py",
    "answer": "switchyard/answers.py",
    "what the API says": "controlplane/api/*.py",
    "client": "switchyard/*.py",
}
# A policy has the name of what it judges by.
POLICIES = "scheduler/policies/*.py"
# Other names with two meanings, and why both stay.
APART = {
    "Grant": "accounts: what a provider's group grants, as the words of OpenID Connect have it; engine: of a device",
    "Piece": "backup: a file of a backup; jobs: bytes of a log; the two packages do not meet",
    "Service": "deploy/local: a process of the stack, in packages that do not meet; else a model that answers requests",
    "Running": "engine: a stage; deploy/local: the stack, in a launcher that imports none of the packages",
}


def classes() -> Iterator[tuple[str, Path]]:
    """Every public class of the packages, with its file."""
    for path in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        where = path.relative_to(ROOT)
        if "migrations" in where.parts or fnmatch(str(where), POLICIES):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name not in REQUIRED and not node.name.startswith("_"):
                yield node.name, where


def doubles(found: Iterator[tuple[str, Path]]) -> Mapping[str, list[str]]:
    """Names of several classes that are not one record each of the same noun."""
    places: dict[str, list[Path]] = defaultdict(list)
    for name, path in found:
        places[name].append(path)
    return {
        name: [str(path) for path in paths]
        for name, paths in places.items()
        if len(paths) > 1 and name not in APART and not _is_one_noun(paths)
    }


def _is_one_noun(paths: list[Path]) -> bool:
    records = [next((kind for kind, pattern in RECORDS.items() if fnmatch(str(path), pattern)), None) for path in paths]
    return None not in records and len(set(records)) == len(records)


def test_one_name_has_one_meaning() -> None:
    assert doubles(classes()) == {}, "say by the name what each of them is; see house.md, names"


def test_what_is_listed_is_there() -> None:
    names = [name for name, _ in classes()]
    assert {name for name in APART if names.count(name) < 2} == set()


def test_the_rule_sees_what_it_forbids() -> None:
    row, read, other = (
        Path(path) for path in ("controlplane/jobs/models.py", "controlplane/queries/jobs.py", "agents/x.py")
    )
    assert doubles(iter([("Job", row), ("Job", read), ("Lane", other)])) == {}
    assert doubles(iter([("Job", row), ("Job", other)])) == {"Job": [str(row), str(other)]}
    assert doubles(iter([("Job", read), ("Job", read)])) == {"Job": [str(read), str(read)]}
