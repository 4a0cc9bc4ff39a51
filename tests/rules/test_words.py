"""Whatever is said in clauses can be said in every language of the pages, with the same values."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest
from django.utils.translation.template import templatize

from agents.ends import ENDS
from agents.notes import NOTES
from controlplane.clause_templates import FAULTS, RECORD
from controlplane.clauses import TEMPLATES
from controlplane.job_templates.shipped import shipped
from scheduler.core.model.clauses import TEMPLATES as ENGINE
from tests.rules.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
LOCALE = ROOT / "frontend" / "locale" / "zh_Hans" / "LC_MESSAGES"
QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
ROOMS = ("agents", "controlplane", "scheduler")
# Where a code is made together with its templates, and where it is only passed on.
TABLES = {"agents/ends.py", "agents/notes.py", "controlplane/clause_templates.py", "scheduler/core/model/clauses.py"}


def names_in(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def chinese(domain: str = "django") -> dict[str, str]:
    """What is compiled, for that is what pages show."""
    with (LOCALE / f"{domain}.mo").open("rb") as file:
        return dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]


def codes(one: ast.expr) -> list[str]:
    """The codes that an expression may give: itself, either branch, or those between which ``several`` chooses."""
    match one:
        case ast.Constant(value=str(code)):
            return [code]
        case ast.IfExp(body=body, orelse=other):
            return codes(body) + codes(other)
        case ast.Call(func=ast.Name(id="several"), args=[_, *choices]):
            return [code for choice in choices for code in codes(choice)]
    return []


def said() -> Iterator[tuple[str, str, set[str] | None]]:
    """Each clause that some line makes: where, its code, and the names of its values, or None where they are passed."""
    for path in (p for room in ROOMS for p in (ROOT / room).rglob("*.py") if "migrations" not in p.parts):
        where = str(path.relative_to(ROOT))
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "clause"
                and node.args
            ):
                given = {keyword.arg for keyword in node.keywords}
                names = None if None in given else {name for name in given if name}
                for code in codes(node.args[0]):
                    yield f"{where}:{node.lineno}", code, names


def test_no_two_rooms_give_one_code_two_meanings() -> None:
    assert len(TEMPLATES) == len(ENGINE) + len(ENDS) + len(NOTES) + len(RECORD) + len(FAULTS)


@pytest.mark.parametrize("code", sorted(TEMPLATES))
def test_a_clause_has_its_chinese_with_the_same_values(code: str) -> None:
    told = chinese().get(TEMPLATES[code], "")
    assert told, f"{code} has no translation: {TEMPLATES[code]!r}"
    assert names_in(told) == names_in(TEMPLATES[code])
    words = re.sub(r"\{\w+\}", "", TEMPLATES[code])
    assert re.search("[a-z]{2}", words) is None or re.search("[\u3000-\u9fff]", told), (
        f"{code} is not Chinese: {told!r}"
    )


def test_the_compiled_catalogue_is_that_of_the_source() -> None:
    source = (LOCALE / "django.po").read_text()
    compiled = chinese()
    for block in source.split("\n\n"):
        found = re.search(r'^msgid (".*"(?:\n".*")*)\nmsgstr (".*"(?:\n".*")*)', block, re.MULTILINE)
        if found:
            key, value = ("".join(ast.literal_eval(line) for line in part.split("\n")) for part in found.groups())
            if within := re.search(r'^msgctxt "(.*)"$', block, re.MULTILINE):
                key = f"{within[1]}\x04{key}"
            assert not key or compiled.get(key) == value, f"compile {LOCALE / 'django.po'} with msgfmt: {key!r}"


def sentences() -> set[str]:
    """Every text of the code, and all that templates have translated."""
    found = {
        node.value
        for room in (*ROOMS, "switchyard", "deploy")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for one in shipped().values():
        found |= {one["title"], one["description"], *(each["title"] for each in one["parameters"])}
    for path in (ROOT / "frontend" / "templates").rglob("*.*"):
        # Django writes each call of a template as one line of Python.
        for call in re.findall(r"(?:gettext|\b_)\((.*)", templatize(path.read_text())):
            found.update(ast.literal_eval(text) for text in QUOTED.findall(call))
    return found


def test_no_translation_is_for_nobody() -> None:
    """Those of scripts are looked at by tests/controlplane/test_pages.py."""
    keys = {key[0] if isinstance(key, tuple) else key for key in chinese()}
    assert sorted({key.rpartition("\x04")[2] for key in keys} - sentences() - {""}) == []


def test_every_clause_that_is_made_has_a_template_and_its_values() -> None:
    made = list(said())
    files = {where.split(":")[0] for where, _, _ in made}
    assert files >= {"agents/supervisor/verdict.py", "controlplane/jobs/record.py"}
    for where, code, given in made:
        assert code in TEMPLATES, where
        if given is not None:
            # Why a step of a start failed is known later than which step it is.
            assert given | {"error"} == names_in(TEMPLATES[code]) | {"error"}, where


def test_no_template_is_for_nobody() -> None:
    texts = [
        p.read_text() for room in ROOMS for p in (ROOT / room).rglob("*.py") if str(p.relative_to(ROOT)) not in TABLES
    ]
    assert [code for code in TEMPLATES if not any(f'"{code}"' in text for text in texts)] == []


# One meaning has one Chinese word, that of docs/zh/glossary.md: in texts that say the English word, these are refused.
DROPPED = (
    (r"\b(hold|held|holds)\b", "暂缓"),
    (r"\breleas", "放行"),
    (r"cordon", "隔离"),
    (r"\bpools?\b", "(?<!资源)池"),
)


@pytest.mark.parametrize(("english", "dropped"), DROPPED)
def test_one_meaning_has_one_chinese_word(english: str, dropped: str) -> None:
    texts = {
        key[0] if isinstance(key, tuple) else key: said
        for domain in ("django", "djangojs")
        for key, said in chinese(domain).items()
    }
    meant = {text: said for text, said in texts.items() if re.search(english, text, re.IGNORECASE)}
    assert meant, "no text has the word any more"
    assert {text: said for text, said in meant.items() if re.search(dropped, said)} == {}


@pytest.mark.parametrize("dropped", ["暂缓", "放行", "(?<!资源)池"])
def test_the_chinese_pages_use_the_words_of_the_glossary(dropped: str) -> None:
    pages = [*(ROOT / "docs" / "zh").glob("*.md"), ROOT / "README.zh-CN.md"]
    assert len(pages) > 10
    assert [str(page.name) for page in pages if re.search(dropped, page.read_text())] == []
