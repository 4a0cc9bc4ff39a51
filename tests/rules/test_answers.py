"""What somebody is refused with, they can read: each sentence is a template that has its Chinese."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.parsed import parsed
from tests.rules.test_words import ROOT, chinese, names_in

# Which arguments of a call are sentences for whoever asked: by place, and by name.
PLACES = {
    "Refused": (2,), "FieldError": (1,), "NodeRefused": (0,), "ProfileInvalid": (0,), "not_found": (0,),
    "staff": (1,), "Unreadable": (0,),
    "refuse": (1,), "_wrong": (1,), "_faulty": (1,), "_at_line": (1,), "_problem": (0,), "Unacceptable": (0,),
    "Unadjustable": (0,), "TooMany": (0,), "ScenarioError": (1,), "TraceError": (2,), "AuthenticationFailed": (0,),
    "PermissionDenied": (0,), "Http404": (0,), "BadRequest": (0,),
    "Unseen": (0,), "Unanswerable": (0,),
}  # fmt: skip
NAMES = {"detail", "hint"}
MARKS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext"}
# Agents speak no language: what they are told stands in their logs.
PEOPLE = sorted(
    path
    for path in (ROOT / "controlplane").rglob("*.py")
    if not {"migrations", "management"} & set(path.parts) and path.relative_to(ROOT).parts[1] != "dispatch"
)
# The engine's modules whose refusals the API passes on.
PASSED_ON = [
    ROOT / "scheduler" / name
    for name in (
        "profiles.py", "policies/__init__.py", "core/model/lifecycle.py", "scenario/arrivals.py",
        "scenario/scenario.py",
        "sim/cluster.py", "sim/traces/__init__.py", "sim/traces/generic.py", "sim/traces/table.py",
    )
]  # fmt: skip


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def called(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def plain(node: ast.expr, given: dict[str, list[ast.expr]]) -> bool:
    """Whether an expression has words that no translator sees; ``given`` are the values that names were given."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(re.search("[A-Za-z]{2}", text))
        case ast.JoinedStr(values=parts):
            return any(plain(part, given) for part in parts if isinstance(part, ast.Constant))
        case ast.BinOp(left=left, right=right):
            return plain(left, given) or plain(right, given)
        case ast.IfExp(body=one, orelse=other):
            return plain(one, given) or plain(other, given)
        case ast.BoolOp(values=values):
            return any(plain(one, given) for one in values)
        case ast.Call(func=ast.Attribute(value=template, attr="format" | "format_map" | "removesuffix")):
            return plain(template, given)
        case ast.Name(id=name):
            return any(plain(one, {}) for one in given.get(name, ()))
    return False


def said(tree: ast.AST, *more: str) -> Iterator[tuple[int, bool]]:
    """Each sentence that is given to whoever asked: its line, and whether it is plain. ``more`` are further calls."""
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    for room in [tree, *functions]:
        given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(room):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                given.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(room):
            if not isinstance(node, ast.Call) or (called(node.func) not in PLACES and called(node.func) not in more):
                continue
            places = PLACES.get(called(node.func), (0,))
            sentences = [node.args[place] for place in places if place < len(node.args)]
            sentences += [keyword.value for keyword in node.keywords if keyword.arg in NAMES]
            local = given if room is not tree else {}
            yield from ((one.lineno, plain(one, local)) for one in sentences)


@pytest.mark.parametrize("path", PEOPLE, ids=named)
def test_what_people_are_refused_with_can_be_translated(path: Path) -> None:
    lines = sorted({line for line, is_plain in said(parsed(path)) if is_plain})
    assert not lines, f"{named(path)} says plain words at lines {lines}: _('a template with {{name}}').format(name=...)"


@pytest.mark.parametrize("path", PASSED_ON, ids=named)
def test_what_the_engine_refuses_knows_its_template(path: Path) -> None:
    lines = sorted({line for line, is_plain in said(parsed(path), "ValueError") if is_plain})
    assert not lines, f"{named(path)} says plain words at lines {lines}: see scheduler/core/model/sentences.py"


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ('raise Refused(400, "invalid", "no such thing")', True),
        ('raise Refused(400, "invalid", f"no {x}")', True),
        ('raise Refused(400, "invalid", "no {x}".format(x=x))', True),
        ('raise Refused(400, "invalid", "no " + x)', True),
        ('raise Refused(400, "invalid", _("no"), hint="so be it")', True),
        ('raise Refused(400, "invalid", x or "nothing")', True),
        ('def f():\n    told = f"no {x}"\n    raise not_found(told)', True),
        ('section.refuse("key", f"{key} is wrong")', True),
        ('FieldError("/at", "is wrong", "invalid")', True),
        ('raise Refused(400, "invalid", _("no {x}").format(x=x))', False),
        ('raise Refused(400, "invalid", f"{at}: {x}")', False),
        ('def f():\n    told = _("no {x}")\n    raise not_found(told.format(x="some thing"))', False),
        ('FieldError("/at", _("is wrong"), "invalid")', False),
    ],
)
def test_the_rule_sees_plain_words(text: str, is_plain: bool) -> None:
    assert any(found for _, found in said(ast.parse(text))) == is_plain


def marked() -> Iterator[tuple[str, str]]:
    """Each template that some line marks for the translators: where, and what it is."""
    for room in ("controlplane", "scheduler"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if {"migrations", "management"} & set(path.parts):
                continue
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Call) and called(node.func) in MARKS and node.args:
                    first = node.args[0]
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        yield f"{named(path)}:{node.lineno}", first.value


def test_whatever_is_marked_has_its_chinese_with_the_same_values() -> None:
    known = chinese()
    found = list(marked())
    assert len(found) > 500
    for where, template in found:
        told = known.get(template) or known.get((template, 0), "")  # type: ignore[call-overload]
        assert told, f"{where} has no translation: {template!r}"
        if "%(" not in template and not re.search(r"\{\W", template):
            assert names_in(told) == names_in(template), where
