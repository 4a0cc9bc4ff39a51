"""The options of ``sbatch``: which take a value, their short letters, and what becomes of those without counterpart.

Read as ``getopt_long`` reads them: a long option may be cut where that is unambiguous, a short one may have its value
behind it without a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VALUE, FLAG, OPTIONAL = "value", "flag", "optional"

SHORT: Final[Mapping[str, str]] = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "I": "immediate",
    "i": "input",
    "J": "job-name", "k": "no-kill", "K": "kill-command",
    "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet", "s": "oversubscribe",
    "S": "core-spec", "t": "time", "v": "verbose", "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip

_TAKEN: Final = {
    **dict.fromkeys(
        (
            "account", "array", "begin", "chdir", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "deadline",
            "dependency",
            "error", "exclude", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name", "mem",
            "mem-per-cpu", "mem-per-gpu", "mincpus", "nodelist", "nodes", "ntasks", "ntasks-per-node", "open-mode",
            "output",
            "partition", "priority", "qos", "reservation", "signal", "time", "tmp", "wckey", "wrap",
        ),
        VALUE,
    ),
    **dict.fromkeys(("hold", "no-requeue", "quiet", "requeue", "test-only", "wait"), FLAG),
    "parsable": FLAG,
}  # fmt: skip

_NODE = "which cores of a node it gets is decided by the node"
_LIMIT = "a job file has no key for it"

WITHOUT: Final[Mapping[str, tuple[str, str]]] = {
    "acctg-freq": (VALUE, "use is measured all the time"),
    "bell": (FLAG, "no bell is rung"),
    "batch": (VALUE, "the script runs on the first node"),
    "bb": (VALUE, "there are no burst buffers; see `inputs` of the job file"),
    "bbf": (VALUE, "there are no burst buffers; see `inputs` of the job file"),
    "cluster-constraint": (VALUE, "a control plane is one cluster"),
    "clusters": (VALUE, "a control plane is one cluster; --url names another"),
    "container": (VALUE, "name an image with `image` of the job file"),
    "container-id": (VALUE, "name an image with `image` of the job file"),
    "contiguous": (FLAG, "see `topology` of the job file"),
    "core-spec": (VALUE, _NODE),
    "cores-per-socket": (VALUE, _NODE),
    "cpu-freq": (VALUE, _LIMIT),
    "delay-boot": (VALUE, _LIMIT),
    "distribution": (VALUE, "srun gives each node its tasks in a row (block)"),
    "exclusive": (OPTIONAL, "a node is shared by what fits on it; ask for its cores, memory and devices"),
    "export-file": (VALUE, "name variables with --export or `env` of the job file"),
    "extra": (VALUE, _LIMIT),
    "extra-node-info": (VALUE, _NODE),
    "get-user-env": (OPTIONAL, "no login shell is started for your environment"),
    "gid": (VALUE, "a node decides as whom a stage runs"),
    "gpu-bind": (VALUE, "srun --gpus-per-task gives each task devices of its own"),
    "gpu-freq": (VALUE, _LIMIT),
    "gpus-per-socket": (VALUE, _NODE),
    "gres-flags": (VALUE, _NODE),
    "hint": (VALUE, _NODE),
    "ignore-pbs": (FLAG, "no #PBS lines are read"),
    "immediate": (OPTIONAL, "a job waits until it fits; --test-only tells when that is"),
    "input": (VALUE, "a batch script reads nothing from its standard input"),
    "kill-command": (OPTIONAL, "what runs in an allocation is asked to stop with it"),
    "kill-on-invalid-dep": (VALUE, "a job whose dependency cannot come true ends as CANCELLED"),
    "licenses": (VALUE, "there are no licenses"),
    "mail-type": (VALUE, "which ends you are told by mail is set on your user page"),
    "mail-user": (VALUE, "mail goes to the address of your user page"),
    "mcs-label": (VALUE, _LIMIT),
    "mem-bind": (VALUE, _NODE),
    "network": (VALUE, _LIMIT),
    "nice": (OPTIONAL, "name a priority class with --qos"),
    "no-bell": (FLAG, "no bell is rung"),
    "no-shell": (FLAG, "the allocation stays until scancel or its time limit"),
    "no-kill": (OPTIONAL, "an attempt ends when one of its nodes is lost; see `on_node_lost`"),
    "nodefile": (VALUE, "name the nodes with --nodelist"),
    "ntasks-per-core": (VALUE, _NODE),
    "ntasks-per-gpu": (VALUE, "say --ntasks-per-node"),
    "ntasks-per-socket": (VALUE, _NODE),
    "oom-kill-step": (OPTIONAL, "a stage ends when its memory is used up"),
    "overcommit": (FLAG, "srun starts as many tasks as it is told, whatever there are of cores"),
    "oversubscribe": (FLAG, "a share of a device is asked with `milli` of the job file"),
    "power": (VALUE, _LIMIT),
    "prefer": (VALUE, "what is only preferred has no key; --constraint says what must be"),
    "profile": (VALUE, "use is measured all the time"),
    "propagate": (OPTIONAL, "limits of your shell are not sent"),
    "reboot": (FLAG, "nodes are not rebooted for a job"),
    "resv-ports": (OPTIONAL, "no ports are reserved"),
    "sockets-per-node": (VALUE, _NODE),
    "spread-job": (FLAG, "see `topology` of the job file"),
    "switches": (VALUE, "say `topology: {within: rack}` in a job file"),
    "thread-spec": (VALUE, _NODE),
    "threads-per-core": (VALUE, _NODE),
    "time-min": (VALUE, "a time limit is never shortened"),
    "tres-bind": (VALUE, _NODE),
    "tres-per-task": (VALUE, "say --gpus-per-task and --cpus-per-task"),
    "uid": (VALUE, "a node decides as whom a stage runs"),
    "use-min-nodes": (FLAG, "the least number of nodes is taken always"),
    "verbose": (FLAG, "this report is all there is to tell"),
    "wait-all-nodes": (VALUE, "all nodes of a job start together always"),
}
"""Options that a job file cannot express: how they are written, and what to do or know instead."""

KNOWN: Final[Mapping[str, str]] = {**_TAKEN, **{name: how for name, (how, _) in WITHOUT.items()}}


HETEROGENEOUS: Final = (
    "components with resources of their own that start together are not known: make them one job whose nodes all have "
    "the larger request, or stages of a job file, each of which starts when it fits"
)
"""Why ``#SBATCH hetjob`` and ``:`` between options are refused."""


@dataclass(frozen=True, slots=True)
class Word:
    """One option as written: its long name, or empty where it is unknown; ``fault`` tells what is wrong with it."""

    option: str
    value: str
    written: str
    fault: str = ""


def words(text: str) -> list[str]:
    """Split a directive as sbatch does: quotes and backslashes hold words together, ``#`` begins a comment."""
    found: list[str] = []
    word, is_open, quote, at = "", False, "", 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and at + 1 < len(text):
                at += 1
                word += text[at]
            else:
                word += char
        elif char in "'\"":
            quote, is_open = char, True
        elif char == "\\" and at + 1 < len(text):
            at += 1
            word, is_open = word + text[at], True
        elif char.isspace():
            if is_open:
                found.append(word)
            word, is_open = "", False
        elif char == "#" and not is_open:
            break
        else:
            word, is_open = word + char, True
        at += 1
    return [*found, word] if is_open else found


def split_commas(text: str) -> list[str]:
    """Split at commas, but for those within quotes, which are taken away."""
    found, word, quote = [], "", ""
    for char in text:
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char == "," and not quote:
            found.append(word)
            word = ""
        else:
            word += char
    return [part for part in (*found, word) if part]


def read(given: Sequence[str]) -> tuple[list[Word], int]:
    """Return the options at the head of ``given`` and how many words they are; what follows is no option."""
    found: list[Word] = []
    at = 0
    while at < len(given):
        word = given[at]
        if word == "--":
            return found, at + 1
        if not word.startswith("-") or word == "-":
            break
        at += 1
        options, needs_next = _long(word) if word.startswith("--") else _cluster(word)
        if needs_next:
            last = options[-1]
            if at < len(given):
                options[-1] = Word(last.option, given[at], f"{last.written} {given[at]}")
                at += 1
            else:
                options[-1] = Word(last.option, "", last.written, "a value is missing")
        found += options
    return found, at


def _long(word: str) -> tuple[list[Word], bool]:
    """Read ``--name`` or ``--name=value``; the second tells that the next word is its value."""
    name, equals, value = word[2:].partition("=")
    option = name if name in KNOWN else next(iter(_begun(name)), "")
    if not option or (name not in KNOWN and len(_begun(name)) > 1):
        return [Word("", value, word, f"there is no option --{name[:60]}")], False
    takes = KNOWN[option]
    if takes == FLAG and equals and option != "parsable":
        return [Word(option, "", word, f"--{option} takes no value")], False
    return [Word(option, value, word)], takes == VALUE and not equals


def _begun(name: str) -> list[str]:
    return [option for option in KNOWN if name and option.startswith(name)]


def _cluster(word: str) -> tuple[list[Word], bool]:
    """Read ``-n4``, ``-n``, or several flags such as ``-HW``."""
    found: list[Word] = []
    for at, letter in enumerate(word[1:], 1):
        option = SHORT.get(letter, "")
        if not option:
            return [*found, Word("", "", word, f"there is no option -{letter}")], False
        if KNOWN[option] == FLAG:
            found.append(Word(option, "", f"-{letter}"))
            continue
        rest = word[at + 1 :]
        value = rest.removeprefix("=")
        return [*found, Word(option, value, f"-{letter}{rest}")], KNOWN[option] == VALUE and not rest
    return found, False


@dataclass(frozen=True, slots=True)
class Directive:
    """One ``#SBATCH`` line; ``is_late`` where it stands behind the first command, so that Slurm does not read it."""

    number: int
    text: str
    is_late: bool


def directives(script: str) -> Iterator[Directive]:
    """Yield every line of a script that begins with ``#SBATCH``."""
    is_late = False
    for number, line in enumerate(script.split("\n"), 1):
        if re.match(r"#SBATCH(\s|$)", line):
            yield Directive(number, line.rstrip("\r"), is_late)
        elif line.strip() and not line.startswith("#"):
            is_late = True


def is_batch(script: str) -> bool:
    """Whether a text is a batch script for Slurm: it begins with ``#!`` and has a line that begins with ``#SBATCH``."""
    return script.startswith("#!") and re.search(r"^#SBATCH(\s|$)", script, re.MULTILINE) is not None
