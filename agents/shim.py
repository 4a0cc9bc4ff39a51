"""The shim: one small process per part that starts the user's command, watches it and writes down how it ended.

It outlives the agent and needs nothing of it: the order lies in ``order.json`` of the part's folder, and so does all
that it tells (``shim.json``, ``exit.json``, the logs). Standard library only, and little of it: there is one per part.

``taken`` is the at-most-once lock: whoever creates it decides whether the command ever runs. The shim keeps the agent's
user; only the command drops privileges, so that a job cannot end its own supervisor on a host where the agent is root.
"""

import json
import os
import resource
import select
import signal
import sys
import time

from agents import birth, cgroup, procfs
from agents.command import make_folder, run_command
from agents.prctl import CHILD_SUBREAPER, DUMPABLE, prctl
from agents.record import read_whole, take, write_whole
from agents.stream import Stream

CRITICAL_CAP_S = 60.0
MEMORY_TICK_S = 0.5
MEMORY_TICK_NEAR_S = 0.1
STOP_TICK_S = 2.0
RESTART_CODES = (85, 75)


class Shim:
    """The life of one part, from its order to its exit file."""

    def __init__(self, folder: str, order: dict) -> None:  # type: ignore[type-arg]
        self.folder = folder
        self.order = order
        self.main = 0
        self.status: int | None = None
        self.cause = ""
        self.detail = ""
        self.why = ""
        self.kill_at: float | None = None
        self.kill_cap_at = 0.0
        self.killed = False
        self.host_goes_down = False
        self.renewed_at = 0.0
        self.peak_bytes = 0
        self.began_at = self.ended_at = procfs.boottime()
        self.streams: list[Stream] = []
        self.record: dict = {  # type: ignore[type-arg]
            "pid": os.getpid(),
            "born": procfs.start_time(os.getpid()),
            "boot_id": order["boot_id"],
        }

    # -- telling

    def _tell(self, **news: object) -> None:
        self.record.update(news)
        write_whole(os.path.join(self.folder, "shim.json"), self.record)
        self._ring()

    def _ring(self) -> None:
        """Wake the agent, if there is one; it looks at the files either way."""
        try:
            bell = os.open(self.order["bell"], os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(bell, self.order["part"].encode() + b"\n")
        except OSError:
            pass
        finally:
            os.close(bell)

    # -- life

    def live(self) -> None:
        prctl(CHILD_SUBREAPER, 1)
        wake = self._listen()
        group = self.order.get("cgroup")
        try:
            if group:
                cgroup.make(group, int(self.order.get("memory_bytes") or 0))
        except OSError:
            self.order["cgroup"] = None
        self._tell()
        self._look_for_stop()
        if self.kill_at is None:
            refusal = self._launch()
            if refusal:
                self.cause, self.detail = "LAUNCH_FAILED", refusal
            else:
                self._watch(wake)
        self._finish()

    def _listen(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._note_shutdown())
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        return reader

    def _note_shutdown(self) -> None:
        self.host_goes_down = True

    def _grace_s(self) -> float:
        return float(self.order.get("grace_s", 30.0))

    # -- launching

    def _launch(self) -> str:
        """Start the command; answers a sentence when it could not be started."""
        try:
            for path in self.order.get("folders", []):
                make_folder(path, self.order.get("uid"), self.order.get("gid"))
        except OSError as error:
            return f'folder "{error.filename}" could not be made: {os.strerror(error.errno or 0)}'
        rank = self.order.get("rank", 0)
        out_reader, out_writer = os.pipe()
        err_reader, err_writer = os.pipe()
        word_reader, word_writer = os.pipe()
        self.began_at = procfs.boottime()
        shim = os.getpid()
        try:
            self.main = birth.fork(self.order.get("cgroup"))
        except OSError as error:
            return f"this host starts no more processes: {os.strerror(error.errno or 0)}"
        if self.main == 0:
            run_command(self.order, out_writer, err_writer, word_writer, shim)
        for descriptor in (out_writer, err_writer, word_writer):
            os.close(descriptor)
        cap = int(self.order.get("log_cap_bytes", 256 << 20))
        self.streams = [
            Stream(reader, os.path.join(self.folder, f"{rank}.{name}"), cap)
            for reader, name in ((out_reader, "out"), (err_reader, "err"))
        ]
        with os.fdopen(word_reader, "rb") as words:
            refusal = words.read().decode(errors="replace")
        if refusal:
            os.waitpid(self.main, 0)
            return refusal
        self._tell(main=self.main, main_born=procfs.start_time(self.main), running=True)
        return ""

    # -- watching

    def _watch(self, wake: int) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        by_source = {stream.source: stream for stream in self.streams}
        for source in by_source:
            poll.register(source, select.POLLIN)
        next_tick = 0.0
        while self.status is None:
            pause = max(0.0, next_tick - procfs.boottime())
            for source, _ in poll.poll(pause * 1000 + 1):
                if source == wake:
                    _empty(wake)
                    next_tick = 0.0
                elif not by_source[source].pump():
                    poll.unregister(source)
                    by_source[source].close_source()
            self._reap()
            if self.status is None and procfs.boottime() >= next_tick:
                next_tick = procfs.boottime() + self._tick()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status
                self.ended_at = procfs.boottime()

    def _tick(self) -> float:
        """Look at stop, time, lease and memory; answers the seconds until the next look is due."""
        self._look_for_stop()
        now = procfs.boottime()
        pause = STOP_TICK_S
        limit = self.order.get("time_limit_s")
        if limit is not None:
            left = self.began_at + float(limit) - now
            if left <= 0 and self.kill_at is None:
                self._begin_stop(
                    "TIMEOUT", self._grace_s(), cause="TIMEOUT", detail=f"ran into its limit of {limit:g} s"
                )
            elif left > 0:
                pause = min(pause, left)
        pause = min(pause, self._watch_lease(now), self._watch_memory())
        if self.kill_at is not None and not self.killed:
            if now >= self.kill_at and not (now < self.kill_cap_at and self._is_critical()):
                self._kill()
            else:
                pause = min(pause, max(0.01, self.kill_at - now) if now < self.kill_at else 0.1)
        return pause

    def _watch_lease(self, now: float) -> float:
        lease_s = self.order.get("lease_s")
        if lease_s is None:
            return STOP_TICK_S
        try:
            with open(self.order["lease"]) as file:
                self.renewed_at = max(self.renewed_at, float(file.read()))
        except (OSError, ValueError):
            pass
        left = max(self.renewed_at, self.began_at) + float(lease_s) - now
        if left <= 0 and self.cause != "LEASE_EXPIRED":
            self.cause = ""
            self._begin_stop(
                "LEASE_EXPIRED",
                self._grace_s(),
                cause="LEASE_EXPIRED",
                detail=f"no report of this node was answered for {lease_s:g} s",
            )
            self.kill_cap_at = 0.0
        return max(0.01, left) if left > 0 else STOP_TICK_S

    def _watch_memory(self) -> float:
        limit = int(self.order.get("memory_bytes") or 0)
        used = procfs.memory(procfs.descendants(os.getpid()))
        self.peak_bytes = max(self.peak_bytes, used)
        if not limit:
            return STOP_TICK_S
        if used > limit and not self.killed:
            self.cause = "OUT_OF_MEMORY"
            self.detail = f"used {used / 2**20:.0f} MiB; it asked for {limit / 2**20:.0f} MiB"
            self._kill()
        return MEMORY_TICK_NEAR_S if used > 0.7 * limit or procfs.boottime() - self.began_at < 3 else MEMORY_TICK_S

    # -- stopping

    def _look_for_stop(self) -> None:
        if self.host_goes_down:
            self._begin_stop("HOST_SHUTDOWN", self._grace_s())
        wanted = read_whole(os.path.join(self.folder, "stop.json"))
        if wanted:
            self._begin_stop(str(wanted.get("why", "")), float(wanted.get("grace_s", self._grace_s())))

    def _begin_stop(self, why: str, grace_s: float, cause: str = "", detail: str = "") -> None:
        """Ask the command to end; a later call can only shorten what is left."""
        kill_at = procfs.boottime() + grace_s
        if cause and not self.cause:
            self.cause, self.detail = cause, detail
        if self.kill_at is not None:
            if kill_at < self.kill_at:
                self.kill_at = kill_at
                self.kill_cap_at = min(self.kill_cap_at, kill_at + CRITICAL_CAP_S)
            return
        self.why = why
        self.kill_at = kill_at
        self.kill_cap_at = kill_at + (min(CRITICAL_CAP_S, 2 * grace_s) if grace_s > 0 else 0.0)
        if not self.main:
            return
        try:
            write_whole(self.order["notice"], {"reason": why, "deadline_s": grace_s}, mode=0o644)
        except OSError:
            pass
        self._tell(stopping=why)
        if grace_s <= 0:
            self._kill()
        elif self.order.get("stop_to") == "group":
            _signal_group(self.main, signal.SIGTERM)
        else:
            procfs.send(self.main, signal.SIGTERM)
            procfs.send(self.main, signal.SIGCONT)

    def _is_critical(self) -> bool:
        """Tells whether the command's last word was that it is writing something that must not be cut."""
        try:
            with open(self.order["reports"], "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
                lines = file.read().split(b"\n")
        except OSError:
            return False
        for line in reversed(lines):
            if b'"phase"' in line:
                try:
                    return bool(json.loads(line)["phase"]["critical"])
                except (ValueError, KeyError, TypeError):
                    return False
        return False

    def _kill(self) -> None:
        self.killed = True
        if self.order.get("cgroup"):
            cgroup.kill(self.order["cgroup"])
        procfs.send(self.main, signal.SIGKILL)

    # -- ending

    def _family(self) -> list[int]:
        self._reap()
        return [pid for pid in procfs.descendants(os.getpid()) if procfs.start_time(pid) is not None]

    def _finish(self) -> None:
        group = self.order.get("cgroup")
        oom_kills = cgroup.oom_kills(group) if group else 0
        if group:
            cgroup.kill(group)
        while left := procfs.end_all(self._family):
            names = ", ".join(str(pid) for pid in left[:5])
            self._tell(substate=f"{len(left)} processes do not end although killed: pid {names}")
            time.sleep(1.0)
        self._reap()
        for stream in self.streams:
            stream.drain()
        if group:
            cgroup.remove(group)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        verdict = self._verdict(oom_kills)
        verdict.update(
            stopped=self.kill_at is not None,
            ran_s=round(max(0.0, self.ended_at - self.began_at), 3) if self.main else 0.0,
            cpu_s=round(used.ru_utime + used.ru_stime, 3),
            peak_memory_bytes=max(self.peak_bytes, used.ru_maxrss * 1024) if self.main else 0,
        )
        while True:
            try:
                write_whole(os.path.join(self.folder, "exit.json"), verdict, sync=True)
                break
            except OSError:
                time.sleep(1.0)
        self._ring()

    def _verdict(self, oom_kills: int) -> dict:  # type: ignore[type-arg]
        if self.status is None:
            detail = self.detail or "stopped before it started"
            return {"code": None, "signal": None, "cause": self.cause, "detail": detail}
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None
        code = os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None
        cause, detail = self.cause, self.detail
        if not cause and number == signal.SIGKILL and oom_kills and not self.killed:
            cause, detail = "OUT_OF_MEMORY", "the kernel ended it for want of memory"
        if not cause and number is not None:
            cause, detail = "SIGNAL", f"ended by {_name(number)}"
            if self.killed:
                detail = f"ended by SIGKILL: it had not ended within its grace after {self.why}"
        if not cause and code in RESTART_CODES:
            cause, detail = "CHECKPOINTED", "asks to be started again from its checkpoint"
        if not cause and code:
            cause, detail = "EXIT_CODE", f"ended with exit code {code}"
            if code > 128:
                detail += f"; 128 + {code - 128} often means that its own command was ended by {_name(code - 128)}"
        return {"code": code, "signal": number, "cause": cause, "detail": detail}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
        os.killpg(leader, signal.SIGCONT)
    except OSError:
        pass


def _empty(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            pass
    except BlockingIOError:
        pass


def run(folder: str) -> None:
    """Run the part whose order lies in ``folder``, unless somebody else has taken it."""
    order = read_whole(os.path.join(folder, "order.json"))
    if order is None or not take(folder):
        return
    try:
        prctl(DUMPABLE, 0)
    except OSError:
        pass
    Shim(folder, order).live()


if __name__ == "__main__":
    run(sys.argv[1])
