"""The life of one part, from its order to its exit file: it is started, watched, stopped, and ended with all its
processes.

Standard library only, and little of it, because memory used here is used once per part of the host.
"""

import os
import select
import time

from agents.ends import clause, told
from agents.isolation import cgroup
from agents.isolation.beneath import FileRights, regular
from agents.isolation.view import shared_memory_bytes
from agents.masking import Mask
from agents.notes import NoteText
from agents.supervisor import container_removal, procfs, spawn, verdict
from agents.supervisor.command import refused, run_command
from agents.supervisor.lean import loads, number, signal
from agents.supervisor.lease import extended
from agents.supervisor.record import GUEST, read_whole, stop_order, substate, tell, write_whole
from agents.supervisor.saving import WATCHED, Saving
from agents.supervisor.secret_file import forget
from agents.supervisor.stream import OutputStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agents.ends import Clause

CRITICAL_CAP_S = 60.0
MEMORY_TICK_S = 0.5
MEMORY_TICK_NEAR_S = 0.1
STOP_TICK_S = 2.0
REMOVAL_TRIES = 3


class Life:
    """One part under the supervision of its shim.

    ``who`` is the shim's entry in the record, open at ``record``; ``wake`` is the pipe for its signals.
    """

    def __init__(self, folder: str, order: dict, who: dict, record: int, wake: int) -> None:  # type: ignore[type-arg]
        self.folder = folder
        self.order = order
        self.rights = FileRights(order.get("uid"), order.get("gid"), order.get("groups", ()))
        self.told = who
        self.record = record
        self.wake = wake
        self.main = 0
        self.word: int | None = None
        self.refusal = b""
        self.is_command = False
        self.status: int | None = None
        self.cause = ""
        self.said: list[Clause] = []
        self.why = ""
        self.kill_at: float | None = None
        self.kill_cap_at = 0.0
        self.saving: Saving | None = None
        self.killed = False
        self.host_goes_down = False
        self.lease_until = 0.0
        self.cpu_s = 0.0
        self.peak_bytes = 0
        self.began_at = self.ended_at = procfs.boottime()
        self.memory_at = 0.0
        self.most_processes = 0
        self.groups: dict[str, str] = {}
        self.streams: list[OutputStream] = []

    # -- telling

    def _tell(self, **news: object) -> None:
        self.told.update(news)
        tell(self.record, self.told)
        self._ring()

    def _ring(self) -> None:
        """Notify the agent if it runs; it also looks at the files by itself."""
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
        """Run the part to its end. When this returns, its exit file is written and none of its processes is left."""
        order = self.order
        memory_bytes, weight = int(order.get("memory_bytes") or 0), int(order.get("weight") or 100)
        self.groups = cgroup.make(order.get("cgroups") or {}, memory_bytes, weight, int(order.get("processes") or 0))
        if self.order.get("lease_s") is not None:
            # An order of an agent before this one may hold no time; its lease counts from here.
            until = self.order.get("lease_until")
            self.lease_until = self.began_at + float(self.order["lease_s"]) if until is None else float(until)
        self._look_for_stop()
        self._watch_lease(procfs.boottime())
        if self.kill_at is None:
            refusal = self._launch()
            if refusal:
                self.cause, self.said = "LAUNCH_FAILED", [refusal]
            else:
                self._watch()
        self._finish()

    def _grace_s(self) -> float:
        return number(self.order.get("grace_s"), 30.0)

    # -- launching

    def _launch(self) -> "Clause | None":
        """Fork the child that becomes the command, without waiting; return an error if that fails.

        The child itself does all that touches the job's folders: a disk that does not respond blocks the child, but
        neither a stop nor the end of the lease.
        """
        order = self.order
        if order.get("is_incomplete"):
            return clause("SecretsGone")
        out_reader, out_writer = os.pipe()
        err_reader, err_writer = os.pipe()
        word_reader, word_writer = os.pipe()
        self.began_at = procfs.boottime()
        shim = os.getpid()
        try:
            self.main = spawn.fork(self.groups)
        except OSError as error:
            for descriptor in (out_reader, out_writer, err_reader, err_writer, word_reader, word_writer):
                os.close(descriptor)
            return clause("HostFull", error=os.strerror(error.errno or 0))
        if self.main == 0:
            run_command(order, self.lease_until, out_writer, err_writer, word_writer, shim)
        for descriptor in (out_writer, err_writer, word_writer):
            os.close(descriptor)
        stem = f"{self.folder}/{order.get('rank', 0)}"
        cap = int(order.get("log_cap_bytes", 256 << 20))
        pace, secrets = int(order.get("log_pace_bytes", 0)), order.get("secrets", ())
        self.streams = [
            OutputStream(reader, f"{stem}.{name}", cap, Mask(secrets), pace)
            for reader, name in ((out_reader, "out"), (err_reader, "err"))
        ]
        self.word = word_reader
        return None

    def _listen(self) -> bool:
        """Read from the child's pipe. Returns False at its end: the child became the command, failed or died."""
        assert self.word is not None, "it has not spoken yet"
        if piece := os.read(self.word, 4096):
            self.refusal += piece
            return True
        os.close(self.word)
        self.word = None
        if self.refusal:
            said = refused(self.refusal)
            self.cause = "LEASE_EXPIRED" if said[0] == "LeaseOver" else "LAUNCH_FAILED"
            self.said = [said]
        elif not self.killed:
            self.is_command = True
            self._let_it_go_first()
            self._tell(main=self.main, main_born=procfs.start_time(self.main))
        return False

    def _let_it_go_first(self) -> None:
        """Make the kernel choose the command, not its supervisors, when the host runs out of memory.

        This is done by the shim: the child's files in /proc belong to root until it has executed the command.
        """
        try:
            score = os.open(f"/proc/{self.main}/oom_score_adj", os.O_WRONLY)
        except OSError:
            return
        try:
            os.write(score, b"500")
        except OSError:
            pass
        finally:
            os.close(score)

    # -- watching

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        by_source = {stream.source: stream for stream in self.streams}
        for source in by_source:
            poll.register(source, select.POLLIN)
        if self.word is not None:
            poll.register(self.word, select.POLLIN)
        # An order to stop may have come while the command was started: the first look is due at once.
        next_tick = 0.0
        self.memory_at = self.began_at + MEMORY_TICK_NEAR_S
        while True:
            now = procfs.boottime()
            if now >= next_tick:
                next_tick = now + self._tick(now)
            for source, _ in poll.poll(max(0.0, next_tick - now) * 1000 + 1):
                if source == self.wake:
                    if self._read_signals():
                        next_tick = self.memory_at = 0.0
                elif source == self.word:
                    if not self._listen():
                        poll.unregister(source)
                elif not by_source[source].pump():
                    poll.unregister(source)
                    by_source[source].close_source()
            self._reap()
            if self.status is not None:
                break
        while self.word is not None and self._listen():
            pass
        if not self.is_command:
            self.status, self.ended_at = None, self.began_at

    def _read_signals(self) -> bool:
        """Read the signals that arrived; return True if one of them is not merely the end of a process."""
        numbers = b""
        try:
            while piece := os.read(self.wake, 512):
                numbers += piece
        except BlockingIOError:
            pass
        return any(number != signal.SIGCHLD for number in numbers)

    def _reap(self) -> bool:
        """Reap ended processes; return True if none is left.

        The shim is the subreaper, so orphaned processes of the part become its children: without a child the part has
        no process.
        """
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if self.saving is not None and pid == self.saving.looker:
                continue
            self.cpu_s += used.ru_utime + used.ru_stime
            self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)
            if pid == self.main:
                self.status = status
                self.ended_at = procfs.boottime()

    def _tick(self, now: float) -> float:
        """Check stop, time limit, lease and memory; return the seconds until the next check."""
        self._look_for_stop()
        self._start_session()
        pause = STOP_TICK_S
        limit = self.order.get("time_limit_s")
        if limit is not None:
            left = self.began_at + float(limit) - now
            if left <= 0 and self.kill_at is None:
                self._begin_stop("TIMEOUT", self._grace_s(), "TIMEOUT", clause("TimeLimit", limit_s=float(limit)))
            elif left > 0:
                pause = min(pause, left)
        pause = min(pause, self._watch_lease(now), self._watch_memory(now))
        if self.kill_at is not None and not self.killed:
            if now >= self.kill_at and not (now < self.kill_cap_at and self._is_saving()):
                self._kill()
            else:
                pause = min(pause, max(0.01, self.kill_at - now) if now < self.kill_at else 0.1)
        return pause

    def _start_session(self) -> None:
        """Start the program of an interactive session that the agent requests.

        It belongs to the part from its start, so it is counted, limited and ended with the part.
        """
        asked = read_whole(f"{self.folder}/{GUEST}")
        if asked is None:
            return
        try:
            os.unlink(f"{self.folder}/{GUEST}")
            if not self.is_command or self.killed:
                return
            if spawn.fork(self.groups):
                return
        except OSError:
            return
        try:
            os.execve(asked["argv"][0], asked["argv"], asked["env"])
        finally:
            os._exit(127)

    def _watch_lease(self, now: float) -> float:
        lease_s = self.order.get("lease_s")
        if lease_s is None:
            return STOP_TICK_S
        if self.cause == "LEASE_EXPIRED":
            return STOP_TICK_S
        if now >= self.lease_until - STOP_TICK_S:
            self.lease_until = extended(self.order["lease"], self.lease_until, float(lease_s))
        left = self.lease_until - now
        if left <= 0:
            self.cause = ""
            over = clause("LeaseOver", lease_s=float(lease_s))
            # The control plane counts the grace from the end of the lease, whenever this is noticed.
            self._begin_stop("LEASE_EXPIRED", self.lease_until + self._grace_s() - now, "LEASE_EXPIRED", over)
            self.kill_cap_at = 0.0
        return max(0.01, left) if left > 0 else STOP_TICK_S

    def _watch_memory(self, now: float) -> float:
        if now < self.memory_at:
            return self.memory_at - now
        limit = self._memory_limit()
        family = procfs.descendants(os.getpid())
        self.most_processes = max(self.most_processes, len(family))
        used = procfs.memory(family, shared_memory_bytes(self.main) if self.order.get("view") else 0)
        self.peak_bytes = max(self.peak_bytes, used)
        pause = STOP_TICK_S
        if limit:
            if used > limit and not self.killed:
                self.cause = "OUT_OF_MEMORY"
                self.said = [clause("MemoryOver", used_bytes=used, asked_bytes=limit)]
                self._kill()
            pause = MEMORY_TICK_NEAR_S if used > 0.7 * limit or now - self.began_at < 3 else MEMORY_TICK_S
        self.memory_at = now + pause
        return pause

    def _memory_limit(self) -> int:
        """Return the bytes that the part may use now; 0 for no limit."""
        revised = read_whole(f"{self.folder}/limits.json") or {}
        return int(number(revised.get("memory_bytes"), 0.0) or self.order.get("memory_bytes") or 0)

    # -- stopping

    def _look_for_stop(self) -> None:
        if self.host_goes_down:
            self._begin_stop("HOST_SHUTDOWN", self._grace_s())
        if wanted := stop_order(self.folder):
            grace_s = number(wanted.get("grace_s"), self._grace_s())
            self._begin_stop(str(wanted.get("why", "")), grace_s, save=bool(wanted.get("save")))

    def _begin_stop(
        self, why: str, grace_s: float, cause: str = "", ended: "Clause | None" = None, save: bool = True
    ) -> None:
        """Ask the command to end, and to save first if ``save``; a later call can only shorten the time left."""
        kill_at = procfs.boottime() + grace_s
        if cause and not self.cause:
            self.cause, self.said = cause, [ended] if ended else []
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
        if self.word is not None:
            # Nothing of the command runs yet that could be asked to stop.
            self._tell(stopping=why)
            self._kill()
            return
        notice = {"reason": why, "deadline_s": max(0.0, grace_s), "save": save}
        try:
            write_whole(self.order["notice"], notice, mode=0o644)
        except OSError:
            pass
        if grace_s <= 0:
            self._kill()
        elif self.order.get("stop_to") == "group":
            _signal_group(self.main, signal.SIGTERM)
        else:
            procfs.send(self.main, signal.SIGTERM)
            procfs.send(self.main, signal.SIGCONT)
        # After the signal, which must follow the notice closely: who sees the notice first may end in between.
        watched = read_whole(f"{self.folder}/{WATCHED}") or {}
        self.saving = Saving(str(watched.get("folder", "")), self.rights)
        self._tell(stopping=why)

    def _is_saving(self) -> bool:
        """Return whether a kill now would interrupt a checkpoint: the command says so, or its files are growing."""
        return self._is_critical() or (self.saving is not None and self.saving.is_under_way())

    def _is_critical(self) -> bool:
        """Return whether the command last reported a critical phase, which must not be interrupted."""
        try:
            reports = regular(self.order["reports"])
        except OSError:
            return False
        try:
            lines = os.pread(reports, 16384, max(0, os.fstat(reports).st_size - 16384)).split(b"\n")
        except OSError:
            return False
        finally:
            os.close(reports)
        for line in reversed(lines):
            if b'"phase"' in line:
                try:
                    return bool(loads(line)["phase"]["critical"])
                except (ValueError, KeyError, TypeError):
                    return False
        return False

    def _kill(self) -> None:
        self.killed = True
        cgroup.kill(self.groups)
        procfs.send(self.main, signal.SIGKILL)

    # -- ending

    def _family(self) -> list[int]:
        if self._reap():
            return []
        return [pid for pid in procfs.descendants(os.getpid()) if procfs.start_time(pid) is not None]

    def _finish(self) -> None:
        oom_kills, refused_forks = self._oom_kills(), cgroup.refused_forks(self.groups)
        if self.saving is not None:
            self.saving.close()
        if not self._reap():
            cgroup.kill(self.groups)
        while left := procfs.end_all(self._family):
            names = ", ".join(str(pid) for pid in left[:5])
            self._tell(left=left[:20], **substate(NoteText(clause("NotEnding", count=len(left), pids=names))))
            time.sleep(1.0)
        self._remove_container()
        forget(self.folder)
        for stream in self.streams:
            stream.drain()
        if not cgroup.remove(self.groups):
            cgroup.kill(self.groups)
            cgroup.remove(self.groups)
        end = self._end(oom_kills, refused_forks)
        while True:
            try:
                write_whole(f"{self.folder}/exit.json", end, sync=True)
                break
            except OSError:
                # A full disk is temporary. If the folder is gone, nobody will read the end.
                if not os.path.isdir(self.folder):
                    break
                time.sleep(1.0)
        os.close(self.record)
        self._ring()

    def _remove_container(self) -> None:
        """Remove the container before the end is recorded; if there is a lease, keep trying as long as it takes.

        Without a lease the agent, which learns of the end, keeps asking its engine.
        """
        tries = 1
        while not container_removal.is_gone(self.folder):
            if self.order.get("lease_s") is None and tries == REMOVAL_TRIES:
                break
            tries += 1
            self._tell(**substate(NoteText(clause("RemovesContainer"))))
            time.sleep(1.0)

    def _oom_kills(self) -> int:
        if self.status is not None and verdict.exit_of(self.status)[1] == signal.SIGKILL:
            return cgroup.oom_kills(self.groups)
        return 0

    def _end(self, oom_kills: int, refused_forks: int) -> dict:  # type: ignore[type-arg]
        code = number = None
        cause, said = self.cause, self.said
        if self.status is None:
            said = said or [clause("NeverStarted")]
        else:
            code, number = verdict.exit_of(self.status)
        if not cause and number == signal.SIGKILL and oom_kills and not self.killed:
            limit = self._memory_limit()
            cause = "OUT_OF_MEMORY"
            said = [clause("KernelMemoryAsked", asked_bytes=limit) if limit else clause("KernelMemory")]
        if not cause and self.status is not None:
            cause, said = verdict.judge(code, number, self.why if self.killed else None)
        most = int(self.order.get("processes") or 0)
        if cause and most and (refused_forks or self.most_processes >= most):
            said = [*said, clause("ProcessLimit", most=most)]
        return {
            "code": code,
            "signal": number,
            "cause": cause,
            **told(*said),
            "stopped": self.kill_at is not None,
            "ran_s": round(max(0.0, self.ended_at - self.began_at), 3) if self.main else 0.0,
            "cpu_s": round(self.cpu_s, 3),
            "peak_memory_bytes": self.peak_bytes if self.main else 0,
        }


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
        os.killpg(leader, signal.SIGCONT)
    except OSError:
        pass
