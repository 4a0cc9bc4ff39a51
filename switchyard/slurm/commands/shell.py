"""What the commands share: the connection, their options, their errors, their formats."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from switchyard.cli import clean
from switchyard.problem import ApiProblem, SwitchyardError

if TYPE_CHECKING:
    from switchyard.client import Client, JobRecord
    from switchyard.slurm.commands.records import SlurmJob

Thing = TypeVar("Thing")
MOST_JOBS: Final = 10_000
NO_JOB: Final = "Invalid job id specified"


class SlurmFault(Exception):
    """An error as Slurm prints it; ``code`` is the exit code."""

    def __init__(self, said: str, code: int = 1) -> None:
        super().__init__(said)
        self.code = code


def answer(name: str, act: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Run a command; print its errors as Slurm does and return its exit code."""
    if list(words) in (["--version"], ["-V"]):
        from switchyard import __version__

        print(f"slurm 24.11.0 (switchyard {__version__})", flush=True)
        return 0
    try:
        return act(words)
    except SlurmFault as fault:
        if str(fault):
            print(clean.lines(str(fault)), file=sys.stderr, flush=True)
        return fault.code
    except ApiProblem as problem:
        print(f"{name}: error: {clean.line(why(problem))}", file=sys.stderr, flush=True)
        return 1
    except SwitchyardError as error:
        print(f"{name}: error: {clean.line(error)}", file=sys.stderr, flush=True)
        return 1


def why(problem: ApiProblem) -> str:
    """Return a refusal in one line, with the first fault of the job file."""
    more = [f"{one.get('pointer') or '/'}: {one.get('detail') or ''}" for one in problem.errors[:1]]
    return "; ".join([str(problem), *more])


def connect() -> Client:
    from switchyard.client import Client

    return Client.from_env()


class SlurmOptions:
    """The options of one command: ``flags`` and ``valued`` map each letter or long name to its one long name.

    A name that maps to None is accepted without effect.
    """

    def __init__(
        self, command: str, words: Sequence[str], flags: Mapping[str, str | None], valued: Mapping[str, str | None]
    ) -> None:
        self.command, self.flags, self.valued = command, flags, valued
        self.found: dict[str, str] = {}
        self.rest: list[str] = []
        given, at = list(words), 0
        while at < len(given):
            word = given[at]
            at += 1
            if word == "--":
                self.rest += given[at:]
                break
            if not word.startswith("-") or word == "-":
                self.rest.append(word)
            elif word.startswith("--"):
                at = self._long(word[2:], given, at)
            else:
                at = self._short(word[1:], given, at)

    def _long(self, word: str, given: list[str], at: int) -> int:
        name, equals, value = word.partition("=")
        known = [each for each in (*self.flags, *self.valued) if len(each) > 1 and each.startswith(name)]
        chosen = name if name in known else known[0] if len(known) == 1 and name else None
        if chosen is None:
            raise self._unknown(f"unrecognized option '--{name}'")
        if chosen in self.valued and not equals:
            if at >= len(given):
                raise self._unknown(f"option '--{chosen}' requires an argument")
            value, at = given[at], at + 1
        self._put(chosen, value)
        return at

    def _short(self, letters: str, given: list[str], at: int) -> int:
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in self.flags:
                self._put(letter, "")
            elif letter in self.valued:
                if not letters:
                    if at >= len(given):
                        raise self._unknown(f"option requires an argument -- '{letter}'")
                    letters, at = given[at], at + 1
                self._put(letter, letters.removeprefix("="))
                letters = ""
            else:
                raise self._unknown(f"invalid option -- '{letter}'")
        return at

    def _put(self, name: str, value: str) -> None:
        if long := self.flags.get(name, self.valued.get(name)):
            self.found[long] = value

    def _unknown(self, said: str) -> SlurmFault:
        return SlurmFault(f'{self.command}: {said}\nTry "{self.command} --help" for more information')

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def get(self, name: str, default: str = "") -> str:
        return self.found.get(name, default)

    def listed(self, name: str) -> list[str]:
        """Return the values of an option that takes several with commas between."""
        return [word for word in re.split(r"[\s,]+", self.found.get(name, "")) if word]


def columns(
    text: str, known: Mapping[str, tuple[str, Callable[[Thing], str]]], fault: Callable[[str], str]
) -> list[tuple[str, str, Callable[[Thing], str], int, bool]]:
    """Read a format such as ``%.18i %9P|%j``: pieces with the text before, the title, the value, a width and its side.

    Text that follows the last field is a field without a title. A letter that is not known is told on standard error.
    """
    found: list[tuple[str, str, Callable[[Thing], str], int, bool]] = []
    between, at = "", 0
    for match in re.finditer(r"%(\.?)([0-9]{0,4})(.)", text):
        between += text[at : match.start()]
        at = match.end()
        if match[3] == "%":
            between += "%"
        elif match[3] in known:
            title, value = known[match[3]]
            found.append((between, title, value, int(match[2] or 0), bool(match[1])))
            between = ""
        else:
            print(fault(match[3]), file=sys.stderr)
    rest = between + text[at:]
    if rest:
        found.append((rest, "", lambda _: "", 0, False))
    return found


def table(
    things: Iterable[Thing], fields: Sequence[tuple[str, str, Callable[[Thing], str], int, bool]], *, headers: bool
) -> Iterator[str]:
    """Yield lines: each value is cut and filled to its width, on the right or the left side of it."""
    if headers:
        yield "".join(between + fitted(title, width, is_right) for between, title, _, width, is_right in fields)
    for thing in things:
        yield "".join(between + fitted(value(thing), width, is_right) for between, _, value, width, is_right in fields)


def fitted(text: str, width: int, is_right: bool) -> str:
    if not width:
        return text
    return text[:width].rjust(width) if is_right else text[:width].ljust(width)


def jobs_of(
    client: Client, *, numbers: Sequence[str] = (), users: Sequence[str] = (), states: Sequence[str] = ()
) -> tuple[list[SlurmJob], list[str]]:
    """Return jobs by number, or all with these states of the REST interface; and the numbers that no job has."""
    from switchyard.slurm.commands.records import SlurmJob

    missing: list[str] = []
    if numbers:
        found = []
        for number in numbers:
            if not re.fullmatch(r"[0-9]{1,18}(_[0-9]{1,9})?", number):
                raise SlurmFault(f"error: Invalid job id: {number}")
            try:
                found.append(client.jobs.get(number))
            except ApiProblem as problem:
                if problem.status != 404:
                    raise
                elements = elements_of(client, number)
                found += elements
                missing += [] if elements else [number]
    else:
        user = users[0] if len(users) == 1 else None
        found = list(client.jobs.list(state=list(states) or None, user=user, limit=MOST_JOBS))
    # An element may be named by itself and by its array.
    whole = [SlurmJob(job) for job in {job["number"]: job for job in found}.values()]
    if not users or (users == ["me"] and not numbers):
        return whole, missing
    names = {client.whoami()["user"] if user == "me" else user for user in users}
    return [one for one in whole if one.text("user") in names], missing


def elements_of(client: Client, number: str) -> list[JobRecord]:
    """Return the elements of an array; none where there is no such array, or the control plane knows no arrays."""
    from switchyard.client import JobRecord, pages

    try:
        found = islice(pages(client.wire, "/jobs", {"array": number, "limit": "500"}), MOST_JOBS)
        return [JobRecord(client.jobs, job) for job in found]
    except ApiProblem as problem:
        if problem.status not in (400, 404, 422):
            raise
        return []


def user_named(name: str) -> str:
    """Return a user as the REST interface calls them: whoever runs this command on this machine is ``me``."""
    import getpass

    return "me" if name in ("", getpass.getuser()) else name
