"""Parses a job file: YAML or JSON text becomes the object for the REST interface.

YAML 1.1 would parse ``on:`` (a key of ``retry``) as true and ``12:00:00`` as a number. Here, as in YAML 1.2, only
``true`` and ``false`` are booleans and times stay text. Duplicate keys and anchors are errors, as in the control plane.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from switchyard.problem import SpecError

LONGEST_BYTES = 1 << 20
DEEPEST = 20
MOST_VALUES = 10_000


def read(path: str) -> dict[str, Any]:
    """Read the job in the file at ``path``, or on standard input for ``-``. Raises :class:`SpecError`."""
    return read_text(text_of(path), path)


def read_text(text: str, path: str) -> dict[str, Any]:
    """Read the job in a text that is that of the file at ``path``.

    A relative folder as ``workdir`` becomes absolute, from the folder of the file. Raises :class:`SpecError`.
    """
    folder, name = (Path.cwd(), "standard input") if path == "-" else (Path(path).resolve().parent, path)
    spec = parse(text, name)
    if spec.get("workdir") and not isinstance(spec["workdir"], Mapping):
        spec["workdir"] = str(folder / Path(str(spec["workdir"])).expanduser())
    return spec


def text_of(path: str) -> str:
    """Return the text in the file at ``path``, or on standard input for ``-``. Raises :class:`SpecError`."""
    if path == "-":
        try:
            text = sys.stdin.read(LONGEST_BYTES + 1)
        except UnicodeDecodeError:
            raise SpecError("standard input is not UTF-8 text; is it a job file?") from None
        if len(text) > LONGEST_BYTES:
            raise SpecError("standard input is larger than 1 MiB; is it a job file?")
        return text
    try:
        if Path(path).stat().st_size > LONGEST_BYTES:
            raise SpecError(f"{path} is larger than 1 MiB; is it a job file?")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}; give a job file, or a command after --") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text; is it a job file?") from None


def parse(text: str, name: str = "the job file") -> dict[str, Any]:
    """Return the object in ``text``; ``name`` is for the error."""
    spec = _load(text, name)
    if not isinstance(spec, dict):
        raise SpecError(f"{name} must hold one mapping of keys such as name, run and devices")
    return spec


def value(text: str) -> Any:
    """Parse one value of a job file: ``4`` is a number, ``[a, b]`` a list, ``12h`` a text."""
    return _load(text, f"the value {text!r}")


def put(spec: dict[str, Any], assignments: Iterable[str]) -> None:
    """Apply ``key.path=value`` texts to ``spec``. A list is indexed by number, or by the name of its item.

    ``null`` removes the key. Raises :class:`SpecError` for a path through something that is no mapping.
    """
    for text in assignments:
        path, equals, written = text.partition("=")
        if not equals or not path.strip():
            raise SpecError(f"--set {text!r} must be written key=value, such as devices.count=4")
        *steps, last = path.strip().split(".")
        if len(steps) >= DEEPEST:
            raise SpecError(f"--set {path[:60]}: a job file has at most {DEEPEST} levels")
        place: Any = spec
        for step in steps:
            place = _enter(place, step, path)
        found = value(written)
        if isinstance(place, list):
            place[_index(place, last, path)] = found
        elif isinstance(place, dict):
            if found is None:
                place.pop(last, None)
            else:
                place[last] = found
        else:
            raise SpecError(f"--set {path}: there is nothing to set {last!r} in")


def _enter(place: Any, step: str, path: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, step, path)]
    if not isinstance(place, dict):
        raise SpecError(f"--set {path}: {step!r} is inside a plain value")
    if place.get(step) is None:
        place[step] = {}
    return place[step]


def _index(items: list[Any], step: str, path: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", step) and int(step) < len(items):
        return int(step)
    for at, item in enumerate(items):
        if isinstance(item, Mapping) and item.get("name") == step:
            return at
    names = ", ".join(str(item.get("name")) for item in items if isinstance(item, Mapping) and item.get("name"))
    raise SpecError(f"--set {path}: no item {step!r}; there are {len(items)}" + (f": {names}" if names else ""))


def _load(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name} cannot be read: {str(error)[:200]}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise SpecError(f"{name} is not valid YAML{where}: {problem}") from None


def written(spec: Mapping[str, Any]) -> str:
    """Write a job as a file that :func:`parse` reads as the same; texts of several lines stay readable."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """SafeDumper that quotes what YAML 1.2 would read as something else than a text."""

        yaml_implicit_resolvers = _loader().yaml_implicit_resolvers

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        is_odd = re.search(r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]", value)
        is_block = "\n" in value and not re.search(r"[^\S\n]\n", value)
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style='"' if is_odd else "|" if is_block else None
        )

    Dumper.add_representer(str, text)
    return str(yaml.dump(dict(spec), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10_000))


@cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader with the plain scalars of YAML 1.2 and without duplicate keys."""

        yaml_implicit_resolvers: dict[Any, Any] = {}
        depth = 0
        values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                problem = "anchors and aliases (& and *) are not accepted"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            self.depth, self.values = self.depth + 1, self.values + 1
            if self.depth > DEEPEST or self.values > MOST_VALUES:
                problem = f"at most {DEEPEST} levels and {MOST_VALUES:,} values are accepted"
                raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                key = key_node.value
                if not isinstance(key_node, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is written twice", key_node.start_mark
                    )
                seen.add(key)
            return {str(key): value for key, value in super().construct_mapping(node, deep=deep).items()}

        def construct_yaml_int(self, node: Any) -> int:
            number = int(node.value)
            if not -(2**63) < number < 2**63:
                raise ValueError(f"{number} is too large a number; a text has quotes")
            return number

        def construct_yaml_float(self, node: Any) -> float:
            number = float(node.value)
            if not math.isfinite(number):
                raise ValueError(f"{node.value[:40]} is too large a number")
            return number

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    for kind, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", list("-+0123456789")),
        (
            "float",
            r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)",
            list("-+.0123456789"),
        ),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), first)
    return Loader
