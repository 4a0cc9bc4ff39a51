"""The shim: one small process per part that starts the user's command, watches it and writes down how it ended.

It outlives the agent and needs nothing of it: the order lies in ``order.json`` of the part's folder, and so does all that
it tells (``shim.json``, ``exit.json``, the logs). Standard library only, and little of that, for there is one per part.

``taken`` is the at-most-once lock: whoever creates it decides whether the command ever runs. The shim keeps the agent's
user; only the command drops privileges, so that a job cannot end its own supervisor on a host where the agent is root.
"""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time

from agents import cgroup, procfs

CHUNK = 65536
CRITICAL_CAP_S = 60.0
MEMORY_TICK_S = 0.5
MEMORY_TICK_NEAR_S = 0.1
STOP_TICK_S = 2.0
RESTART_CODES = (85, 75)

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl was refused")


def write_whole(path: str, content: dict, mode: int = 0o600, sync: bool = False) -> None:  # type: ignore[type-arg]
    """Replace a JSON file in one step: a reader sees the old content or the new, never a piece."""
    draft = f"{path}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, json.dumps(content).encode())
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, path)
    if sync:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_whole(path: str) -> dict | None:  # type: ignore[type-arg]
    """The content of a JSON file; None when it is not there or not readable as JSON."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def take(folder: str) -> bool:
    """Claim the right to decide whether the part's command runs; true for exactly one caller, ever."""
    try:
        lock = os.open(os.path.join(folder, "taken"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(lock, f"{os.getpid()} {procfs.start_time(os.getpid())}".encode())
    finally:
        os.close(lock)
    return True


class Stream:
    """One output of the command: read always, kept up to a cap, with a marker wherever bytes were dropped."""

    def __init__(self, source: int, path: str, cap_bytes: int) -> None:
        self.source = source
        self.cap_bytes = cap_bytes
        self.kept = 0
        self.capped = False
        self.dropped = 0
        self.sink = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Move what is there; false at the end of the stream."""
        try:
            content = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._keep(content)
        return bool(content)

    def close_source(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1

    def drain(self) -> None:
        """Take what is left once nobody writes any more, then close."""
        while self.source >= 0:
            try:
                content = os.read(self.source, CHUNK)
            except OSError:
                break
            if not content:
                break
            self._keep(content)
        self.close_source()
        if self.dropped:
            self._write(self._marker())
        os.close(self.sink)

    def _marker(self) -> bytes:
        why = f"the cap of {self.cap_bytes} bytes is reached" if self.capped else "the disk did not take them"
        return f"\n[switchyard: {self.dropped} bytes dropped here: {why}]\n".encode()

    def _keep(self, content: bytes) -> None:
        if self.capped:
            self.dropped += len(content)
            return
        if self.dropped and self._write(self._marker()) > 0:
            self.dropped = 0
        fitting = content[: self.cap_bytes - self.kept]
        wrote = 0 if self.dropped else self._write(fitting)
        self.kept += wrote
        self.dropped += len(content) - wrote
        if len(fitting) < len(content):
            self.capped = True
            self._write(f"\n[switchyard: output beyond {self.cap_bytes} bytes is dropped]\n".encode())

    def _write(self, content: bytes) -> int:
        """Bytes written; fewer than given when the disk is full. Never raises: the command must not feel our disk."""
        wrote = 0
        try:
            while wrote < len(content):
                wrote += os.write(self.sink, content[wrote:])
        except OSError:
            pass
        return wrote


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
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
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
                _make_folder(path, self.order.get("uid"), self.order.get("gid"))
        except OSError as error:
            return f'folder "{error.filename}" could not be made: {os.strerror(error.errno or 0)}'
        rank = self.order.get("rank", 0)
        out_reader, out_writer = os.pipe()
        err_reader, err_writer = os.pipe()
        word_reader, word_writer = os.pipe()
        self.began_at = procfs.boottime()
        shim = os.getpid()
        try:
            self.main = os.fork()
        except OSError as error:
            return f"this host starts no more processes: {os.strerror(error.errno or 0)}"
        if self.main == 0:
            _run_command(self.order, out_writer, err_writer, word_writer, shim)
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


def _make_folder(path: str, uid: int | None, gid: int | None) -> None:
    """Make a folder and what leads to it; only a folder made here is given to the command's user."""
    if os.path.isdir(path):
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return
    if uid is not None and uid != os.geteuid():
        os.chown(path, uid, gid if gid is not None else -1, follow_symlinks=False)


def _drop(uid: int, gid: int, groups: list[int]) -> None:
    """Become another user for good, and make sure of it."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise PermissionError(errno.EPERM, "the user did not change")
    if uid != 0:
        try:
            os.setresuid(0, 0, 0)
        except PermissionError:
            pass
        else:
            raise PermissionError(errno.EPERM, "root could be regained")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _run_command(order: dict, out: int, err: int, word: int, shim: int) -> None:  # type: ignore[type-arg]
    """In the child: become the command. Never returns; a refusal goes up ``word`` as a sentence."""
    step = "its process could not be prepared"
    try:
        os.setsid()
        if order.get("cgroup"):
            cgroup.join(order["cgroup"])
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _be_first_to_go()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
        if order.get("cpus"):
            os.sched_setaffinity(0, order["cpus"])
        os.umask(0o022)
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target, inheritable=True)
        if order.get("uid") is not None:
            step = f"its user could not be changed to uid {order['uid']}"
            _drop(order["uid"], order["gid"], order.get("groups", []))
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(127)
        step = f'its folder "{order["cwd"]}" could not be entered'
        os.chdir(order["cwd"])
        step = ""
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:
        os.write(word, _refusal(order, step, error).encode(errors="replace"))
    finally:
        os._exit(127)


def _be_first_to_go() -> None:
    """Have the kernel pick the command, not its supervisors, when the host runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _refusal(order: dict, step: str, error: BaseException) -> str:  # type: ignore[type-arg]
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if step:
        return f"{step}: {reason}"
    command = order["argv"][0] if order["argv"] else ""
    if isinstance(error, FileNotFoundError):
        return f'command "{command}" was not found; PATH is {order["env"].get("PATH", "not set")}'
    if isinstance(error, PermissionError):
        return f'command "{command}" may not be executed by uid {os.getuid()}; is it marked as executable?'
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return f'command "{command}" is neither a program nor a script with a #! line'
    return f'command "{command}" could not be executed: {reason}'


def run(folder: str) -> None:
    """Run the part whose order lies in ``folder``, unless somebody else has taken it."""
    order = read_whole(os.path.join(folder, "order.json"))
    if order is None or not take(folder):
        return
    try:
        _prctl(_PR_SET_DUMPABLE, 0)
    except OSError:
        pass
    Shim(folder, order).live()


if __name__ == "__main__":
    run(sys.argv[1])
