"""The pages tell the truth: every verb, option, key, variable, code and state is on its page."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from switchyard import Devices, Job, Stage
from switchyard.cli import exits
from switchyard.cli.main import parser_of
from switchyard.cli.verbs import SUMMARY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMON = {"-h", "--help", "--url", "--token", "--profile", "-o", "--output", "--json", "--no-headers", "--columns"}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def sections(text: str, mark: str) -> dict[str, str]:
    """The parts of a page by their headings of one level."""
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("verb", SUMMARY)
def test_every_verb_and_every_option_of_it_is_described(verb):
    text = sections(page("reference/cli.md"), "###")[f"yard {verb}"]
    inherited = sections(page("reference/cli.md"), "###")["yard submit"] if verb == "run" else ""
    for action in parser_of(verb)._actions:
        for option in set(action.option_strings) - COMMON:
            assert f"`{option}`" in text + inherited, option


def test_every_common_option_is_described():
    text = page("reference/cli.md").partition("## Jobs")[0]
    assert all(f"`{option}" in text for option in COMMON - {"-h", "--help"})


def test_no_verb_is_described_that_is_not_there():
    told = {name.removeprefix("yard ") for name in sections(page("reference/cli.md"), "###")}
    assert told == set(SUMMARY)


def test_every_exit_code_is_described_in_the_words_of_the_command():
    text = page("reference/exit-codes.md")
    for code, meaning in exits.MEANING.items():
        assert f"| {code} | {meaning} |" in text


def test_every_key_of_a_job_is_described():
    text = page("reference/job-file.md")
    written = {item.name for shape in (Job, Stage, Devices) for item in fields(shape)} | {"run", "apiVersion", "any_of"}
    assert {key for key in written if f"`{key}`" not in text} == set()


def test_the_keys_are_those_that_the_control_plane_reads():
    source = ast.parse((ROOT / "controlplane" / "jobs" / "spec.py").read_text())
    known: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in (
            "STAGE_DEFAULTS",
            "JOB_KEYS",
            "STAGE_KEYS",
        ):
            known |= {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
    assert known
    text = page("reference/job-file.md")
    assert {key for key in known if f"`{key}`" not in text} == set()
    ours = {item.name for shape in (Job, Stage) for item in fields(shape)}
    assert ours <= known


def test_every_variable_of_a_stage_is_described():
    source = (ROOT / "agents" / "tasks" / "environment.py").read_text()
    given = set(re.findall(r'"((?:YARD|PET|CUDA|MASTER|NNODES|NODE|OMP)[A-Z_]*)"', source))
    text = page("reference/environment.md")
    assert len(given) > 20
    assert {name for name in given if f"`{name}" not in text} == set()


def test_every_state_and_cause_is_in_the_glossary():
    from scheduler.core.model.lifecycle import Cause, Health, NodeState, State

    text = page("glossary.md")
    for words in (State, Cause, NodeState, Health):
        assert {str(word) for word in words if not re.search(rf"\b{word}\b", text)} == set()


def test_links_between_pages_lead_somewhere():
    pages = [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md"), *DOCS.glob("reference/*.md")]
    pages += [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    for path in pages:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            found = (path.parent / target) if target else path
            assert found.exists(), f"{path}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", found.read_text(), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title in titles}


def test_the_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def commands() -> list[tuple[str, str]]:
    """Return the lines of the documentation that are commands of ``yard``, each with its page; the reference of the
    command line has words beside its commands."""
    found = []
    for path in sorted(set(DOCS.rglob("*.md")) - {DOCS / "reference" / "cli.md"}):
        blocks = re.findall(r"^```(?:bash|sh)?\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
        found += [(path.name, line.removeprefix("$ ")) for line in lines if re.match(r"(\$ )?yard [a-z-]+( |$)", line)]
    return found


def test_the_commands_of_the_documentation_can_be_understood(capsys):
    faults = []
    assert len(commands()) > 100
    for page_, line in commands():
        words = shlex.split(line, comments=True)
        ends = [at for at, word in enumerate(words) if word in {"|", "&&", "||", "<", ">", "&", "--"}]
        verb, *given = words[1 : min(ends, default=len(words))]
        try:
            parser_of(verb).parse_args(given)
        except SystemExit:
            faults.append(f"{page_}: {line}: {capsys.readouterr().err}")
    assert not faults
