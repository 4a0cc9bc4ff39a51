"""Parses JSON and YAML texts with bounds: texts that are too deep or too large are refused before parsing."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import yaml
from django.utils.translation import gettext as _

from controlplane.wellformed import LARGEST_WHOLE, faults

DEEPEST: Final = 20
MOST_NODES: Final = 10_000
# Bounds of any body; each job file in a body also has the bounds above.
DEEPEST_BODY: Final = 50
MOST_VALUES: Final = 1_000_000
# A whole string, so that its content is not counted, or a bracket, brace or comma. An unterminated string extends to
# the end of the body: trying again from each quote in it would take quadratic time.
_MARK: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)|[][{},]', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class Unreadable(Exception):
    """Raised for a text that is not acceptable JSON or YAML; the message says why."""


def from_json(content: bytes) -> Any:
    """Parse JSON; its texts and numbers can all be stored. Raises :class:`Unreadable`."""
    _count(content)
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
    except UnicodeDecodeError:
        raise Unreadable(_("the body must be UTF-8 text")) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Unreadable(_("this is no JSON that can be read: {reason}").format(reason=str(error)[:200])) from None
    if _ESCAPED.search(content):
        for at, fault in faults(value):
            raise Unreadable(_("{what} {fault}").format(what=at[:200] or _("the body"), fault=fault))
    return value


def _too_deep() -> Unreadable:
    return Unreadable(_("it is nested too deep; at most {levels} levels are accepted").format(levels=DEEPEST_BODY))


def _count(content: bytes) -> None:
    """Raise for a text with more values, or deeper nesting, than any body may have, before values are created."""
    if sum(map(content.count, (b",", b"[", b"{"))) <= DEEPEST_BODY:
        return
    depth = count = 0
    for mark in _MARK.finditer(content):
        match content[mark.start()]:
            case 91 | 123:  # [ {
                depth, count = depth + 1, count + 1
            case 93 | 125:  # ] }
                depth -= 1
            case 44:  # ,
                count += 1
        if depth > DEEPEST_BODY:
            raise _too_deep()
        if count > MOST_VALUES:
            raise Unreadable(_("a body may hold at most {most:,} values").format(most=MOST_VALUES))


def _whole(text: str) -> int:
    if len(text) > 20 or not -LARGEST_WHOLE <= int(text) <= LARGEST_WHOLE:
        raise Unreadable(
            _("{number} is too large: a whole number may be {most} at most; a text has quotes").format(
                number=text[:30], most=LARGEST_WHOLE
            )
        )
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Unreadable(_("{number} is too large for a number").format(number=text[:30]))
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _value in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unreadable(_("the key {key!r} is there twice; which of them is meant?").format(key=twice[:60]))
    return found


def _no_constant(word: str) -> Any:
    raise Unreadable(_("{word} is not JSON").format(word=word))


def _at_line(mark: yaml.Mark, problem: str) -> Unreadable:
    return Unreadable(_("line {line}: {problem}").format(line=mark.line + 1, problem=problem))


class _JobFileLoader(yaml.SafeLoader):
    """Safe YAML without dangerous or surprising features: aliases, tags, and the booleans and times of YAML 1.1."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _at_line(event.start_mark, _("anchors and aliases (& and *) are not accepted"))
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > DEEPEST or self.nodes > MOST_NODES:
            raise Unreadable(
                _("at most {levels} levels and {most:,} values are accepted").format(levels=DEEPEST, most=MOST_NODES)
            )
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at_line(key.start_mark, _("a key must be a word"))
            if key.value in seen:
                raise _at_line(key.start_mark, _("the key {key!r} is there twice").format(key=key.value[:60]))
            seen.add(key.value)
        return {str(key): value for key, value in super().construct_mapping(node, deep=deep).items()}


# YAML 1.2: "on", "yes" and "no" are words, 12:30 is a text, 2027-01-31 is a text, 1e-4 is a number.
_JobFileLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?", "-+.0123456789"),
):
    _firsts = [*_first.replace("\0", ""), *([""] if "\0" in _first else [])]
    _JobFileLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _firsts)


def _float(loader: Any, node: Any) -> float:
    return _finite(node.value)


def _int(loader: Any, node: Any) -> int:
    return _whole(node.value)


_JobFileLoader.add_constructor("tag:yaml.org,2002:float", _float)
_JobFileLoader.add_constructor("tag:yaml.org,2002:int", _int)


def from_yaml(content: bytes) -> Any:
    """Parse one YAML document. Raises :class:`Unreadable` with the line."""
    try:
        loader = _JobFileLoader(content.decode("utf-8"))
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
        for at, fault in faults(value):
            raise Unreadable(_("{what} {fault}").format(what=at[:200] or _("the file"), fault=fault))
        return value
    except UnicodeDecodeError:
        raise Unreadable(_("the file must be UTF-8 text")) from None
    except yaml.MarkedYAMLError as error:
        problem = error.problem or _("this is no YAML")
        raise (_at_line(error.problem_mark, problem) if error.problem_mark else Unreadable(problem)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(_("this is no YAML that can be read: {reason}").format(reason=str(error)[:200])) from None


def to_yaml(value: Any) -> str:
    """Return a value as YAML, with keys in their order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
