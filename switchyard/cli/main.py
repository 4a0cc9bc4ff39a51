"""Parses the command line, runs the verb, and turns exceptions into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Never

from switchyard.cli import clean, exits
from switchyard.cli.verbs import SUMMARY, VERBS, load

if TYPE_CHECKING:
    from switchyard.problem import ApiProblem

_WITH_VALUE = ("--url", "--token", "--profile")
_ELSEWHERE = {
    **dict.fromkeys(("sbatch", "apply", "create"), "submit"),
    "srun": "run",
    **dict.fromkeys(("ssh", "enter", "shell"), "exec"),
    **dict.fromkeys(("squeue", "queue", "list", "jobs"), "ps"),
    **dict.fromkeys(("status", "describe", "get"), "show"),
    **dict.fromkeys(("scancel", "kill", "stop", "delete"), "cancel"),
    **dict.fromkeys(("log", "tail"), "logs"),
    "sinfo": "nodes",
}
"""Words of other schedulers, and what they are called here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; never raises for errors that a user can cause."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exits.FAILURE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe (head, less) has exited.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - every error ends in one sentence and a code
        return _explain(error)


def _dispatch(given: list[str]) -> int:
    head, name, tail = _split(given)
    if name is None:
        if "--version" in head:
            return main(["version", *(word for word in head if word != "--version")])
        print(_help())
        return exits.OK if not head or {"-h", "--help"} & set(head) else exits.USAGE
    if name == "help":
        return main([*tail[:1], "--help"])
    if name not in SUMMARY:
        near = _ELSEWHERE.get(name) or _near(name, list(SUMMARY))
        raise _usage(
            f"there is no verb {name!r}", f"did you mean `yard {near}`?" if near else "`yard --help` lists the verbs"
        )
    verb = load(name)
    command: list[str] = []
    if verb.takes_command and "--" in tail:
        at = tail.index("--")
        tail, command = tail[:at], tail[at + 1 :]
        if not command:
            raise _usage("there is no command after --", f"such as: yard {name} -- python train.py")
    parser = parser_of(name)
    args = parser.parse_args([*head, *tail])
    if verb.takes_command:
        args.command = command
    return verb.run(args)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one verb, with the options that all verbs have."""
    verb = load(name)
    parser = _Parser(
        prog=f"yard {name}",
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog="examples:\n" + verb.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.options(parser)
    group = parser.add_argument_group("which control plane")
    group.add_argument("--url", help="its address; else YARD_URL, ./.yard.toml, the config file, the local stack")
    group.add_argument("--token", help="who you are; prefer YARD_TOKEN or `yard login`, others can see a command line")
    group.add_argument("--profile", help="a profile of the config file")
    return parser


class _Parser(argparse.ArgumentParser):
    """Reports errors in the same form as other errors, with suggestions."""

    def error(self, message: str) -> Never:
        hint = f"`{self.prog} --help` shows how to write it"
        if message.startswith("unrecognized arguments:"):
            unknown = message.partition(":")[2].split()
            known = [text for action in self._actions for text in action.option_strings]
            near = _near(unknown[0].partition("=")[0], known) if unknown[0].startswith("-") else None
            hint = f"did you mean {near}?" if near else hint
        raise _usage(message, hint)


def _usage(message: str, hint: str = "") -> SystemExit:
    _print_error(message, "usage", hint)
    return SystemExit(exits.USAGE)


def _split(given: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Split the arguments into options before the verb, the verb, and the rest."""
    at = 0
    while at < len(given):
        if not given[at].startswith("-"):
            return given[:at], given[at], given[at + 1 :]
        at += 2 if given[at] in _WITH_VALUE else 1
    return given, None, []


def _help() -> str:
    lines = ["yard: submit jobs to Switchyard, see where they run and why they wait.", "", "usage: yard VERB [options]"]
    for group, verbs in VERBS.items():
        lines += ["", f"{group}:", *(f"  {name:<11} {text}" for name, text in verbs.items())]
    lines += [
        "",
        "examples:",
        "  yard run -- python train.py       run a script of this folder, see its output, get its exit code",
        "  yard submit job.yaml --wait       queue a job file and wait for its end",
        "  yard why 42                       what job 42 waits for, and when it will probably start",
        "",
        "`yard VERB --help` tells the options of a verb.",
    ]
    return "\n".join(lines)


def _explain(error: Exception) -> int:
    from switchyard.address import ConfigError
    from switchyard.problem import (
        ApiProblem,
        NotFound,
        SpecError,
        SwitchyardError,
        Unreachable,
        UsageError,
        WaitTimeout,
    )

    if isinstance(error, ApiProblem):
        _print_problem(error)
        return exits.of_problem(error.status, error.code)
    code, word = exits.FAILURE, "failed"
    if isinstance(error, Unreachable):
        code, word = exits.UNREACHABLE, "unreachable"
    elif isinstance(error, WaitTimeout):
        code, word = exits.TIMED_OUT, "timed_out"
    elif isinstance(error, NotFound):
        code, word = exits.NOT_FOUND, "not_found"
    elif isinstance(error, UsageError):
        code, word = exits.USAGE, "usage"
    elif isinstance(error, SpecError):
        code, word = exits.USAGE, "invalid_spec"
    elif isinstance(error, ConfigError):
        code, word = exits.USAGE, "config"
    elif isinstance(error, ModuleNotFoundError) and error.name in ("httpx", "rich", "websockets", "yaml"):
        _print_error(f"the package {error.name} is not installed", "missing_package", f"pip install {error.name}")
        return exits.FAILURE
    elif not isinstance(error, SwitchyardError):
        if os.environ.get("YARD_TRACEBACK"):
            raise error
        _print_error(f"{type(error).__name__}: {error}", "internal", "this is a bug; set YARD_TRACEBACK=1 to see where")
        return exits.FAILURE
    _print_error(str(error), word)
    return code


def _print_problem(problem: ApiProblem) -> None:
    hint = problem.hint
    if problem.status == 401 and not hint:
        hint = "`yard login` stores a token; YARD_TOKEN gives one for this shell"
    faults = [f"{e.get('pointer') or '/'}: {e.get('detail') or e.get('code') or ''}" for e in problem.errors]
    # A single fault is often the whole sentence already.
    said = len(faults) == 1 and str(problem) in (faults[0], faults[0].lstrip("/"))
    more = [] if said else [f"  {fault}" for fault in faults]
    _print_error(str(problem), problem.code, hint, problem.trace_id, more)


def _print_error(message: str, code: str, hint: str = "", trace: str = "", more: Sequence[str] = ()) -> None:
    """Print one error on standard error: ``error: sentence (code)``, then hints."""
    lines = [f"error: {clean.line(message)} ({clean.line(code)})", *(clean.line(text) for text in more)]
    lines += [f"  hint: {clean.line(hint)}"] if hint else []
    lines += [f"  trace: {clean.line(trace)}"] if trace else []
    print("\n".join(lines), file=sys.stderr, flush=True)


def _near(word: str, known: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1, 0.6)), None)


if __name__ == "__main__":
    sys.exit(main())
