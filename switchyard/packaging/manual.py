"""Writes the manual page of ``yard`` from the parsers of its verbs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from switchyard import __version__
from switchyard.cli import exits
from switchyard.cli.main import parser_of
from switchyard.cli.verbs import VERBS, load

COMMON = ("url", "token", "profile")
ENVIRONMENT = {
    "YARD_URL": "the address of the control plane",
    "YARD_TOKEN": "who you are",
    "YARD_PROFILE": "a profile of the configuration file",
    "YARD_PROJECT": "the project of new jobs",
    "YARD_HOME": "where the stack on this machine writes its client.toml; else ~/.switchyard",
    "NO_COLOR": "switches colours off",
}
FILES = {
    "./.yard.toml": "address and project for a team; a token of it goes to its address only",
    "~/.config/yard/config.toml": "what yard login remembers",
    "~/.cache/yard": "names for completion, for some seconds",
}


def manual() -> str:
    """Return the page, in the macros of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield '.\\" Made by docs/generate.py from the help of the verbs; change it there.'
    yield f'.TH YARD 1 "" "Switchyard {__version__}" "User Commands"'
    yield from (".SH NAME", "yard \\- submit jobs to Switchyard, see where they run and why they wait")
    yield from (".SH SYNOPSIS", ".B yard", ".I VERB", "[\\fIoption\\fR ...] [\\fIargument\\fR ...]")
    yield from (
        ".SH DESCRIPTION",
        "Lists are tables on a terminal, and one row a line with tabs between the cells in a pipe.",
    )
    yield "Errors go to standard error, with a stable code in brackets."
    yield from (".SH OPTIONS OF EVERY VERB",)
    for action in parser_of("version")._actions:
        if action.dest in (*COMMON, "help"):
            yield from _item(_written(action), action.help or "")
    for group, verbs in VERBS.items():
        yield f".SH {_text(group).upper()}"
        for name in verbs:
            yield from _verb(name)
    yield ".SH EXIT STATUS"
    for code, meaning in exits.MEANING.items():
        yield from _item(f"\\fB{code}\\fR", meaning)
    yield from _item("\\fB128+N\\fR", "for a job, or a command inside one: signal N ended it")
    yield from (
        ".SH ENVIRONMENT",
        *(line for name, told in ENVIRONMENT.items() for line in _item(f"\\fB{name}\\fR", told)),
    )
    yield from (".SH FILES", *(line for name, told in FILES.items() for line in _item(f"\\fI{_text(name)}\\fR", told)))


def _verb(name: str) -> Iterator[str]:
    verb = load(name)
    actions = [action for action in parser_of(name)._actions if action.dest not in (*COMMON, "help")]
    given = [_written(action) for action in actions if not action.option_strings]
    after = ["[\\-\\- \\fICOMMAND\\fR ...]"] if verb.takes_command else []
    yield f".SS yard {name}"
    yield _text(f"{verb.summary[0].upper()}{verb.summary[1:]}.")
    yield from (".PP", " ".join([f"\\fByard {name}\\fR", "[\\fIoption\\fR ...]", *given, *after]))
    for action in actions:
        if action.help is not argparse.SUPPRESS:
            yield from _item(_written(action), action.help or "")
    yield from (".PP", "Examples:", ".PP", ".nf", *(_text(line) for line in verb.examples.splitlines()), ".fi")


def _written(action: argparse.Action) -> str:
    """Return how an argument is written: options in bold, what they take in italics."""
    chosen = "|".join(str(each) for each in action.choices or () if each is not None)
    if isinstance(action.metavar, str):
        takes = action.metavar
    else:
        takes = chosen or (action.dest.upper() if action.option_strings else action.dest)
    takes = f"\\fI{_text(takes)}\\fR"
    if not action.option_strings:
        takes = f"[{takes}]" if action.nargs in ("?", "*") else takes
        return takes + (" ..." if action.nargs in ("*", "+") else "")
    flags = ", ".join(f"\\fB{_text(option)}\\fR" for option in action.option_strings)
    return flags if action.nargs == 0 else f"{flags} {takes}"


def _item(title: str, told: str) -> Iterator[str]:
    yield from (".TP", title, _text(told.replace("%%", "%")))


def _text(text: str) -> str:
    """Return a text in which nothing is a command of roff; dashes can be copied from the page."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
