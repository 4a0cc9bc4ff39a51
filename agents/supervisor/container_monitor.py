"""Runs one container for its shim: pulls the image, creates, starts, signals and removes it, and records how it ended.

The shim supervises this program like any command, and the container's output is this program's output. It knows no
container engine: the command lines are in ``container.json`` of the part's folder, and what it reports is in
``container-state.json``. Standard library only, one thread: signals are waited for and never interrupt.
"""

import os
import signal
import sys
import time

from agents.ends import clause
from agents.ends import told as told_by
from agents.isolation.beneath import regular
from agents.notes import NoteText
from agents.supervisor import procfs
from agents.supervisor.container_removal import planned
from agents.supervisor.lean import number
from agents.supervisor.lease import extended
from agents.supervisor.record import ordered, read_whole, substate, write_whole
from agents.supervisor.secret_file import remove, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agents.ends import Clause

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LAUNCH_FAILED_CODE = 125
_AGAIN_S = 0.2
_BEFORE_DEADLINE_S = 0.5
_LAST_WORDS_BYTES = 4096


class Stopped(Exception):
    """Raised if a stop came before the container ran."""


class ContainerMonitor:
    """The life of one container, from its image to its removal."""

    def __init__(self, folder: str, plan: dict) -> None:  # type: ignore[type-arg]
        self.folder = folder
        self.plan = plan
        self.lines: dict[str, list[str]] = plan["lines"]
        self.log = os.path.join(folder, "engine.log")
        self.state: dict = {}  # type: ignore[type-arg]
        self.unsent: list[int] = []
        self.remove_at: float | None = None

    def _tell(self, **news: object) -> None:
        """Write the state file; the end is written at last even if the disk is full for a while."""
        self.state.update(news)
        while True:
            try:
                write_whole(os.path.join(self.folder, "container-state.json"), self.state)
                break
            except OSError:
                if "end" not in self.state:
                    break
                time.sleep(1.0)
        self._ring()

    def _ring(self) -> None:
        try:
            bell = os.open(self.plan["bell"], os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(bell, self.plan["part"].encode() + b"\n")
        except OSError:
            pass
        finally:
            os.close(bell)

    def live(self) -> int:
        """Run the container to its end; return the exit code of this program."""
        # Engines and their monitors leave files where they are started: not among the job's.
        os.chdir(self.folder)
        signal.pthread_sigmask(signal.SIG_BLOCK, {*HEARD, signal.SIGCHLD})
        try:
            return self._live()
        finally:
            for path in (self.plan.get("env_file"), self.plan.get("lines_file")):
                if path:
                    remove(path)

    def _live(self) -> int:
        try:
            refusal = self._make_ready()
        except Stopped:
            self._quiet("remove")
            self._tell(end={})
            return 128 + signal.SIGTERM
        if refusal:
            return self._refuse(refusal)
        notes = {name: self.plan.get(name) or [] for name in ("notes", "notes_said")}
        self._tell(running=True, **substate(""), **notes)
        code = self._run()
        return self._end(code)

    def _make_ready(self) -> "Clause | None":
        """Prepare image and container; return an error if there will be none."""
        image, engine = self.plan["image"], self.plan["engine"]
        self._tell(**substate(NoteText(clause("LooksForImage", image=image))))
        if self._step("exists"):
            self._tell(**substate(NoteText(clause("PullsImage", image=image))))
            if self._step("pull"):
                return clause("ImageNotPulled", image=image, engine=engine, error=self._last_words())
        self._tell(**substate(NoteText(clause("MakesContainer"))))
        if lines := self.plan.get("lines_file"):
            self.plan["env"] = {**self.plan["env"], **(take(lines) or {})}
        if self.lines["create"] and self._step("create"):
            return clause("ContainerNotMade", engine=engine, error=self._last_words())
        if self.lines["create"]:
            remove(self.plan.get("env_file") or "")
        self._look_at_lease()
        return None

    def _look_at_lease(self) -> None:
        """Raise Stopped if the lease is over, so that nothing is started. The shim checks the lease too, and stops
        the part."""
        order = ordered(self.folder)
        lease_s, until = order.get("lease_s"), order.get("lease_until")
        if lease_s is None or until is None:
            return
        if procfs.boottime() >= extended(order["lease"], float(until), float(lease_s)):
            while signal.sigwait({*HEARD}) != signal.SIGTERM:
                pass
            raise Stopped

    # -- children

    def _spawn(self, words: list[str], out: int, err: int) -> int:
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, each, target) for target, each in enumerate((nothing, out, err))]
            return os.posix_spawnp(words[0], words, self.plan["env"], file_actions=actions, setsigmask=())
        finally:
            os.close(nothing)

    def _logged(self, words: list[str]) -> int:
        """Start a command line of the engine whose output is not the job's."""
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            log = os.open(os.devnull, os.O_WRONLY)
        try:
            return self._spawn(words, log, log)
        except OSError as error:
            _say(log, f"{words[0]}: {error.strerror}\n")
            return 0
        finally:
            os.close(log)

    def _step(self, name: str) -> int:
        """Run one command line and return its exit code. Raises Stopped if a stop comes first."""
        pid = self._logged(self.lines[name])
        if not pid:
            return 127
        while True:
            code = _ended(pid)
            if code is not None:
                return code
            heard = signal.sigtimedwait({*HEARD, signal.SIGCHLD}, 1.0)
            if heard is not None and heard.si_signo == signal.SIGTERM:
                procfs.send(pid, signal.SIGTERM)
                if _ended_within(pid, 2.0) is None:
                    procfs.send(pid, signal.SIGKILL)
                    _ended_within(pid, 5.0)
                raise Stopped

    def _quiet(self, name: str, *more: str) -> int:
        """Run a short command line, ignoring stops, and return its exit code."""
        if not self.lines[name]:
            return 0
        pid = self._logged([*self.lines[name], *more])
        code = _ended_within(pid, 30.0) if pid else 127
        if code is None:
            procfs.send(pid, signal.SIGKILL)
            _ended_within(pid, 5.0)
        return 1 if code is None else code

    # -- the container

    def _run(self) -> int:
        try:
            pid = self._spawn(self.lines["start"], 1, 2)
        except OSError as error:
            _say(2, f"{self.lines['start'][0]}: {error.strerror}\n")
            return 127
        while True:
            code = _ended(pid)
            if code is not None:
                return code
            heard = signal.sigtimedwait({*HEARD, signal.SIGCHLD}, _AGAIN_S if self.unsent else self._patience_s())
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                self.unsent.append(heard.si_signo)
            self._pass_on(pid)
            if self.remove_at is not None and time.monotonic() >= self.remove_at:
                self.remove_at = None
                self._quiet("remove")

    def _patience_s(self) -> float:
        return 60.0 if self.remove_at is None else max(0.01, self.remove_at - time.monotonic())

    def _pass_on(self, pid: int) -> None:
        """Forward the signals that this process got to the container; one that does not run yet gets them when it
        does."""
        while self.unsent:
            number = self.unsent[0]
            if number == signal.SIGTERM:
                self._give_notice()
            if not self.lines["signal"]:
                procfs.send(pid, number)
            elif self._quiet("signal", signal.Signals(number).name):
                return
            self.unsent.pop(0)

    def _give_notice(self) -> None:
        """Show the stop notice inside the container, and make sure that a daemon's container is removed if the shim
        is killed."""
        notice = read_whole(self.plan["notice"]) or {}
        try:
            write_whole(self.plan["told"], notice, mode=0o644)
        except OSError:
            pass
        if self.plan["daemon"] and self.remove_at is None and "deadline_s" in notice:
            self.remove_at = time.monotonic() + max(0.0, number(notice["deadline_s"], 0.0) - _BEFORE_DEADLINE_S)

    # -- ending

    def _end(self, code: int) -> int:
        end: dict[str, Any] = {}
        told = self._ask_state()
        # conmon writes this file where it was started; older podmans do not look there.
        if told and (told[0] == "true" or (code == 128 + signal.SIGKILL and os.path.exists("oom"))):
            asked = int(number(self.plan.get("memory_bytes"), 0.0))
            end = {"cause": "OUT_OF_MEMORY", **told_by(clause("KernelMemoryAsked", asked_bytes=asked))}
        elif told and (told[2].startswith("0001-") or (code in (1, 126, 127) and self._init_refused())):
            why = clause(
                "ContainerCommand",
                engine=self.plan["engine"],
                command=self.plan["command"],
                error=self._words_of_start(),
            )
            end = {"cause": "LAUNCH_FAILED", **told_by(why)}
            code = LAUNCH_FAILED_CODE
        stays = self._quiet("remove") != 0
        self._tell(end=end, stays=stays, **substate(""))
        return code

    def _ask_state(self) -> list[str]:
        """Return the engine's state of the ended container; empty if it cannot be read."""
        if not self.lines["state"]:
            return []
        reader, writer = os.pipe()
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            pid = self._spawn(self.lines["state"], writer, nothing)
        except OSError:
            return []
        finally:
            os.close(writer)
            os.close(nothing)
        with os.fdopen(reader, errors="replace") as answer:
            words = answer.read(_LAST_WORDS_BYTES).split()
        return words if _ended_within(pid, 5.0) == 0 and len(words) >= 3 else []

    def _refuse(self, why: "Clause") -> int:
        self._quiet("remove")
        self._tell(end={"cause": "LAUNCH_FAILED", **told_by(why)}, **substate(""))
        return LAUNCH_FAILED_CODE

    def _last_words(self) -> str:
        return _last_line(self.log) or "it said nothing"

    def _init_refused(self) -> bool:
        """Return whether the engine's own init (catatonit, tini) ended because it could not execute the command."""
        return any(words in self._words_of_start() for words in ("failed to exec pid1:", "[FATAL tini ("))

    def _words_of_start(self) -> str:
        """Return the engine's last line in the command's error output, which the shim writes with a short delay."""
        for _ in range(20):
            if words := _last_line(os.path.join(self.folder, f"{self.plan['rank']}.err")):
                return words
            time.sleep(0.02)
        return "it said nothing"


def _say(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
    except OSError:
        pass


def _last_line(path: str) -> str:
    try:
        descriptor = regular(path)
    except OSError:
        return ""
    try:
        told = os.pread(descriptor, _LAST_WORDS_BYTES, max(0, os.fstat(descriptor).st_size - _LAST_WORDS_BYTES))
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    lines = [line.strip() for line in told.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _ended(pid: int) -> int | None:
    """The exit code of a child, as a shell would tell it; None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 127
    if done == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _ended_within(pid: int, patience_s: float) -> int | None:
    deadline = time.monotonic() + patience_s
    pause = 0.002
    while (code := _ended(pid)) is None and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return code


def run(folder: str) -> int:
    """Run the container that ``folder`` describes."""
    plan = planned(folder)
    if plan is None:
        end = {"cause": "LAUNCH_FAILED", **told_by(clause("ContainerUnplanned"))}
        write_whole(os.path.join(folder, "container-state.json"), {"end": end})
        return LAUNCH_FAILED_CODE
    return ContainerMonitor(folder, plan).live()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
