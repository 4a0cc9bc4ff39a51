"""Runs a batch script inside a stage, and ``srun`` in it: one process for each task, on all nodes of the job.

One file, standard library only, Python 3.9 or newer: the agent puts it beside :mod:`switchyard.runtime`. Called as

    python3 step.py batch [options] -- [argument...] < script   what a converted batch script runs, on every node
    python3 step.py srun [options] command...                  ``srun`` in the script
    python3 step.py enter [command...]                          a command beside the script, for ``salloc``
    python3 step.py scontrol show hostnames [LIST]             ``scontrol`` in the script, as far as it needs no cluster

The script runs on the first node, once. Every other node runs a station, which waits for orders of ``srun`` and starts
its tasks there. Who may give orders is decided by a secret of the job: both sides prove that they know it, and each
message is authenticated by a key of the connection. What tasks print travels in clear.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import queue
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KEY = "SLURM_STEP_KEY"
PLACE = "SWITCHYARD_STEP_DIR"
LARGEST_MESSAGE = 1 << 20
PIECE_BYTES = 1 << 16
MOST_TASKS = 4096
MOST_HOSTS = 65_536
HANDSHAKE_S = 10.0
KILL_WAIT_S = 30.0
LEFT_BEHIND_S = 5.0
ENTRY_S = 60.0
UNKNOWN_CALLERS = 32
PORTS_BELOW = 2000
PORTS_TRIED = 4
FORWARDED = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT")

# ----------------------------------------------------------------------------------------------------------- host lists


def expand(text: str, most: int = MOST_HOSTS) -> Iterator[str]:
    """Yield the names in a host list: ``node[01-03,7],login``. Raises ValueError for more than ``most``."""
    count = 0
    for part in _split(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        names = [""]
        for at, piece in enumerate(pieces):
            if at % 2 == 0:
                if re.search(r"[\[\]\s]", piece):
                    raise ValueError(f"{text[:60]!r} is no list of hosts, such as node[01-04],node7")
                names = [name + piece for name in names]
            else:
                numbers = _numbers(piece, most)
                if len(names) * len(numbers) > most:
                    raise ValueError(f"a list names at most {most:,} hosts")
                names = [name + number for name in names for number in numbers]
        for name in names:
            count += 1
            if count > most:
                raise ValueError(f"a list names at most {most:,} hosts")
            if name:
                yield name


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts: list[str] = []
    depth, word = 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            parts.append(word)
            word = ""
        else:
            word += char
    return [part.strip() for part in (*parts, word)]


def _numbers(text: str, most: int) -> list[str]:
    found: list[str] = []
    for each in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", each.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or last < first or len(found) + last - first >= most:
            raise ValueError(f"[{text[:60]}] is no list of numbers, such as [01-04,7]")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def compress(names: Sequence[str]) -> str:
    """Return names as a host list: ``node[01-03]``; the order of first appearance is kept."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name)
        stem, number = (match[1], match[2]) if match else (name, "")
        groups.setdefault((stem, len(number) if number.startswith("0") else 0 if number else -1), []).append(number)
    parts = []
    for (stem, width), numbers in groups.items():
        if width < 0:
            parts.append(stem)
            continue
        runs: list[list[int]] = []
        for number in sorted({int(each) for each in numbers}):
            if runs and runs[-1][1] == number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        shown = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
        bare = len(runs) == 1 and runs[0][0] == runs[0][1]
        parts.append(stem + (shown[0] if bare else f"[{','.join(shown)}]"))
    return ",".join(parts)


def spread(tasks: int, nodes: int) -> list[int]:
    """Return how many tasks each node starts: in a row, as evenly as can be."""
    share, more = divmod(tasks, nodes)
    return [share + (at < more) for at in range(nodes) if share + (at < more)]


def grouped(counts: Sequence[int]) -> str:
    """Return counts as Slurm writes them: ``2(x3),1``."""
    found: list[list[int]] = []
    for count in counts:
        if found and found[-1][0] == count:
            found[-1][1] += 1
        else:
            found.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in found)


# ---------------------------------------------------------------------------------------------------------------- links


class BrokenLink(Exception):
    """The other side is gone, or is not who it must be."""


class Link:
    """A connection between two nodes of a job, after both have proved that they know its secret."""

    def __init__(self, line: socket.socket, sends: bytes, receives: bytes) -> None:
        self._line, self._sends, self._receives = line, sends, receives
        self._sent = self._received = 0
        self._lock = threading.Lock()

    def send(self, kind: str, content: bytes = b"", **fields: Any) -> None:
        """Send one message. Raises :class:`BrokenLink`."""
        head = json.dumps({"kind": kind, **fields}).encode()
        body = struct.pack(">I", len(head)) + head + content
        with self._lock:
            mark = _mark(self._sends, self._sent, body)
            self._sent += 1
            try:
                self._line.sendall(struct.pack(">I", len(body)) + body + mark)
            except OSError as error:
                raise BrokenLink(str(error)) from None

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next message and its content. Raises :class:`BrokenLink`, also for one that was changed."""
        (length,) = struct.unpack(">I", _exactly(self._line, 4))
        if not 4 <= length <= 2 * LARGEST_MESSAGE:
            raise BrokenLink("a message is too large")
        body = _exactly(self._line, length)
        mark = _exactly(self._line, 32)
        if not hmac.compare_digest(mark, _mark(self._receives, self._received, body)):
            raise BrokenLink("a message is not from this job")
        self._received += 1
        (head,) = struct.unpack(">I", body[:4])
        return json.loads(body[4 : 4 + head]), body[4 + head :]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


def _mark(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.new(key, struct.pack(">Q", number) + body, hashlib.sha256).digest()


def _exactly(line: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        try:
            piece = line.recv(min(PIECE_BYTES, count - len(found)))
        except OSError as error:
            raise BrokenLink(str(error)) from None
        if not piece:
            raise BrokenLink("the connection is closed")
        found += piece
    return found


def greet(line: socket.socket, key: bytes, is_listener: bool) -> Link:
    """Let both sides prove that they know ``key``; return the link. Raises :class:`BrokenLink`."""
    line.settimeout(HANDSHAKE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mine = secrets.token_bytes(32)
    try:
        line.sendall(mine)
        theirs = _exactly(line, 32)
        nonces = theirs + mine if is_listener else mine + theirs  # the caller's comes first
        calls, listens = (hmac.new(key, word + nonces, hashlib.sha256).digest() for word in (b"calls", b"listens"))
        line.sendall(_mark(listens if is_listener else calls, 2**63, b""))
        proof = _exactly(line, 32)
    except OSError as error:
        raise BrokenLink(str(error)) from None
    if not hmac.compare_digest(proof, _mark(calls if is_listener else listens, 2**63, b"")):
        raise BrokenLink("it does not know the secret of this job")
    line.settimeout(None)
    return Link(line, listens if is_listener else calls, calls if is_listener else listens)


def attempt_key() -> bytes:
    """Return the key of this attempt: that of an earlier one opens nothing."""
    secret = os.environ.get(KEY, "")
    if not secret:
        raise SystemExit(f"batch: {KEY} is not set, so the nodes of this job cannot know each other")
    whose = "/".join(os.environ.get(name, "") for name in ("YARD_JOB_ID", "YARD_STAGE", "YARD_ATTEMPT", "YARD_EPOCH"))
    return hmac.new(secret.encode(), whose.encode(), hashlib.sha256).digest()


# ---------------------------------------------------------------------------------------------------------------- tasks


class StepTasks:
    """The tasks of a step on one node, in a process group of their own."""

    def __init__(
        self,
        order: dict[str, Any],
        environ: dict[str, str],
        cwd: str,
        printed: Callable[[int, str, bytes], None] | None,
        ended: Callable[[int, int], None],
    ) -> None:
        """Start them. ``printed`` is told what they print, None lets them print where this process does; ``ended`` is
        told the wait status of each as :class:`subprocess.Popen` returns it, 127 for one that could not start."""
        self._lock = threading.Lock()
        self._tasks: list[subprocess.Popen[bytes]] = []
        self._is_asked = False
        self._ended = ended
        for local, rank in enumerate(order["ranks"]):
            own = {**environ, **order["each"], "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
            _share_devices(own, local, int(order.get("devices_per_task") or 0))
            self._start(order, rank, own, cwd, printed)

    def _start(
        self,
        order: dict[str, Any],
        rank: int,
        own: dict[str, str],
        cwd: str,
        printed: Callable[[int, str, bytes], None] | None,
    ) -> None:
        files: dict[str, Any] = {}
        try:
            with contextlib.ExitStack() as opened:
                for name in ("stdout", "stderr"):
                    path = order.get(name)
                    if path:
                        mode = "ab" if order.get("appends") else "wb"
                        files[name] = opened.enter_context(open(os.path.join(cwd, _filled(path, own)), mode))
                    else:
                        files[name] = None if printed is None else subprocess.PIPE
                if order.get("stdout") and not order.get("stderr"):
                    files["stderr"] = subprocess.STDOUT
                source = None if order.get("reads") else subprocess.DEVNULL
                task = subprocess.Popen(order["argv"], env=own, cwd=cwd, stdin=source, start_new_session=True, **files)
        except (OSError, ValueError) as error:
            said = f"srun: error: {own.get('SLURMD_NODENAME', '')}: {order['argv'][0]}: {error}\n".encode()
            if printed is None:
                os.write(2, said)
            else:
                printed(rank, "err", said)
            self._ended(rank, 127)
            return
        with self._lock:
            self._tasks.append(task)
        pumps = []
        for stream, pipe in (("out", task.stdout), ("err", task.stderr)):
            if pipe is not None and printed is not None:
                pumps.append(threading.Thread(target=_pump, args=(pipe, rank, stream, printed), daemon=True))
        for pump in pumps:
            pump.start()
        threading.Thread(target=self._wait, args=(task, rank, pumps), daemon=True).start()

    def _wait(self, task: subprocess.Popen[bytes], rank: int, pumps: list[threading.Thread]) -> None:
        code = task.wait()
        for pump in pumps:
            # Whoever it has left behind may hold the pipe open for ever.
            pump.join(LEFT_BEHIND_S)
        self._ended(rank, code)

    def signal(self, name: str) -> None:
        """Send a signal to every task that runs, with its children. SIGTERM comes once, though both the agent and
        ``srun`` may pass a stop on."""
        number = getattr(signal, f"SIG{name}", None)
        if number is None or (name == "TERM" and self._is_asked):
            return
        self._is_asked = self._is_asked or name == "TERM"
        with self._lock:
            running = [task for task in self._tasks if task.poll() is None]
        for task in running:
            with contextlib.suppress(OSError):
                os.killpg(task.pid, number)


def _pump(pipe: Any, rank: int, stream: str, printed: Callable[[int, str, bytes], None]) -> None:
    with pipe:
        while piece := os.read(pipe.fileno(), PIECE_BYTES):
            printed(rank, stream, piece)


def _share_devices(own: dict[str, str], local: int, each: int) -> None:
    """Show a task only its own of the devices of the node."""
    if not each:
        return
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "MUSA_VISIBLE_DEVICES"):
        held = [word for word in own.get(name, "").split(",") if word]
        if held:
            own[name] = ",".join(held[local * each : (local + 1) * each])


def _filled(path: str, environ: dict[str, str]) -> str:
    """Fill the patterns of a file name, as Slurm has them."""
    job, task = environ.get("SLURM_JOB_ID", "0"), environ.get("SLURM_ARRAY_TASK_ID", "4294967294")
    known = {
        "%": "%",
        "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": task,
        "j": job,
        "J": job + (f".{environ['SLURM_STEP_ID']}" if "SLURM_STEP_ID" in environ else ""),
        "N": environ.get("SLURMD_NODENAME", ""),
        "n": environ.get("SLURM_NODEID", "0"),
        "s": environ.get("SLURM_STEP_ID", "batch"),
        "t": environ.get("SLURM_PROCID", "0"),
        "u": environ.get("USER", ""),
        "x": environ.get("SLURM_JOB_NAME", ""),
    }

    def filled(found: re.Match[str]) -> str:
        width = min(int(found[1] or 0), 10)
        return known[found[2]].zfill(width) if found[2] in known else found[0]

    return re.sub(r"%([0-9]*)([%AajJNnstux])", filled, path)


# ---------------------------------------------------------------------------------------------------------- the station


def station(key: bytes) -> int:
    """Serve a node other than the first: register with the first node, then start what ``srun`` orders."""
    work = os.getcwd()
    steps: list[StepTasks] = []
    lock = threading.Lock()
    listener = socket.create_server(("", 0), family=_family(), backlog=64)
    threading.Thread(target=_serve, args=(listener, key, work, steps, lock), daemon=True).start()

    def stop(number: int, frame: object) -> None:
        for step in tuple(steps):
            step.signal("TERM")

    signal.signal(signal.SIGTERM, stop)
    line = _call_first(key)
    line.send("here", rank=int(os.environ.get("YARD_NODE_RANK", "0")), port=listener.getsockname()[1])
    try:
        while True:
            word, _ = line.receive()
            if word.get("kind") == "bye":
                return 0
    except BrokenLink:
        # The first node has failed, or was killed; the agent ends this one too, and names that one as the cause.
        return 1


def _family() -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in os.environ.get("MASTER_ADDR", "") else socket.AF_INET


def _ports() -> list[int]:
    """The ports of which the first node takes the first that is free: apart from MASTER_PORT, which is the script's."""
    first = int(os.environ.get("MASTER_PORT", "29500")) - PORTS_BELOW
    return [first + 7 * turn for turn in range(PORTS_TRIED)]


def _call_first(key: bytes) -> Link:
    """Connect to the first node, however long it takes to come up: if it fails, the agent ends this node too."""
    host, pause_s = os.environ.get("MASTER_ADDR", ""), 0.05
    while True:
        for port in _ports():
            with contextlib.suppress(OSError, BrokenLink):
                line = socket.create_connection((host, port), timeout=HANDSHAKE_S)
                try:
                    return greet(line, key, is_listener=False)
                except BrokenLink:
                    line.close()
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.5)


def _serve(listener: socket.socket, key: bytes, work: str, steps: list[StepTasks], lock: threading.Lock) -> None:
    room = threading.Semaphore(UNKNOWN_CALLERS)
    while True:
        line, _ = listener.accept()
        if not room.acquire(blocking=False):
            line.close()
            continue
        threading.Thread(target=_answer, args=(line, key, work, steps, lock, room), daemon=True).start()


def _answer(
    line: socket.socket, key: bytes, work: str, steps: list[StepTasks], lock: threading.Lock, room: threading.Semaphore
) -> None:
    try:
        link = greet(line, key, is_listener=True)
    except BrokenLink:
        line.close()
        return
    finally:
        room.release()
    step: StepTasks | None = None
    try:
        order, _ = link.receive()
        ranks = order.get("ranks") or []
        left = [len(ranks)]

        def printed(rank: int, stream: str, piece: bytes) -> None:
            with contextlib.suppress(BrokenLink):
                link.send("printed", piece, rank=rank, stream=stream)

        def ended(rank: int, code: int) -> None:
            with contextlib.suppress(BrokenLink), lock:
                left[0] -= 1
                link.send("ended", rank=rank, code=code)

        environ = {**os.environ, **order["changed"]}
        for name in order["removed"]:
            environ.pop(name, None)
        environ.pop(KEY, None)
        cwd = os.path.normpath(os.path.join(work, order["cwd"]))
        step = StepTasks(order, environ, cwd if os.path.isdir(cwd) else work, printed, ended)
        steps.append(step)
        while True:
            word, _ = link.receive()
            if word.get("kind") == "signal":
                step.signal(str(word.get("name")))
    except BrokenLink:
        if step is not None:
            # Its srun is gone, so nobody waits for what it does.
            step.signal("KILL")
    finally:
        if step is not None and step in steps:
            steps.remove(step)
        link.close()


# ----------------------------------------------------------------------------------------------------- the batch script


def batch(argv: list[str]) -> int:
    """Run the script on standard input on the first node, and a station on every other."""
    options, arguments = _split_arguments(argv)
    asked = dict(zip(options[::2], options[1::2]))  # noqa: B905 - Python 3.9
    rank, nodes = int(os.environ.get("YARD_NODE_RANK", "0")), os.environ.get("YARD_NODES", "").split("\n")
    if rank:
        return station(attempt_key())
    folder = os.path.join(os.environ.get("YARD_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "slurm")
    os.makedirs(os.path.join(folder, "bin"), mode=0o700, exist_ok=True)
    script = os.path.join(folder, "slurm_script")
    _write(script, sys.stdin.buffer.read() if not sys.stdin.isatty() else b"", 0o700)
    for name in ("srun", "scontrol"):
        words = f"{_quoted(sys.executable)} -I {_quoted(os.path.abspath(__file__))} {name}"
        _write(os.path.join(folder, "bin", name), f'#!/bin/sh\nexec {words} "$@"\n'.encode(), 0o700)
    hall = Hall(attempt_key(), len(nodes)) if len(nodes) > 1 else None
    environ = _described(dict(os.environ), nodes)
    environ.pop(KEY, None)
    environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + environ.get("PATH", "/usr/bin:/bin")
    environ[PLACE] = folder
    _write(os.path.join(folder, "environ.json"), json.dumps(environ).encode(), 0o600)
    stations = hall.gather() if hall else {}
    known = {"nodes": nodes, "stations": stations, "key": hall.key.hex() if hall else "", "work": os.getcwd()}
    _write(os.path.join(folder, "nodes.json.new"), json.dumps(known).encode(), 0o600)
    os.rename(os.path.join(folder, "nodes.json.new"), os.path.join(folder, "nodes.json"))
    status = _run_script(script, arguments, environ, asked)
    if hall:
        hall.dismiss()
    if status < 0:
        # What ended the script ends this process, so that the job has the same end.
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        return 128 - status
    return status


class Hall:
    """Where the stations of the other nodes register, on the first node."""

    def __init__(self, key: bytes, count: int) -> None:
        self.key, self._count = key, count
        self._links: dict[int, Link] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._listener = self._listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    def _listen() -> socket.socket:
        for port in _ports():
            with contextlib.suppress(OSError):
                return socket.create_server(("", port), family=_family(), backlog=256)
        raise SystemExit(f"batch: none of the ports {_ports()} is free on this node, so srun cannot reach the others")

    def _accept(self) -> None:
        room = threading.Semaphore(UNKNOWN_CALLERS)
        while True:
            try:
                line, where = self._listener.accept()
            except OSError:
                return
            if not room.acquire(blocking=False):
                line.close()
                continue
            threading.Thread(target=self._meet, args=(line, where[0], room), daemon=True).start()

    def _meet(self, line: socket.socket, host: str, room: threading.Semaphore) -> None:
        try:
            link = greet(line, self.key, is_listener=True)
            line.settimeout(HANDSHAKE_S)
            word, _ = link.receive()
            line.settimeout(None)
            rank = int(word["rank"])
            self._places[rank], self._links[rank] = (host, int(word["port"])), link
            self._news.put(None)
        except (BrokenLink, OSError, ValueError, KeyError):
            line.close()
        finally:
            room.release()

    def gather(self) -> dict[str, tuple[str, int]]:
        """Wait until every other node is there; return the address of each by its rank."""
        while len(self._places) < self._count - 1:
            self._news.get()
        return {str(rank): place for rank, place in self._places.items()}

    def dismiss(self) -> None:
        """Tell the stations that the script has ended."""
        for link in self._links.values():
            with contextlib.suppress(BrokenLink):
                link.send("bye")


def _described(environ: dict[str, str], nodes: list[str]) -> dict[str, str]:
    """Return the environment with what Slurm tells a batch script; what the job file says in ``env`` stays."""
    job = environ.get("YARD_JOB_ID", "0")
    per_node = environ.get("SLURM_NTASKS_PER_NODE")
    tasks = int(environ.get("SLURM_NTASKS") or len(nodes) * int(per_node or 1))
    counts = spread(tasks, len(nodes))
    told = {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": environ.get("YARD_JOB_NAME", ""),
        "SLURM_JOB_ACCOUNT": environ.get("YARD_PROJECT", ""),
        "SLURM_JOB_USER": environ.get("USER", ""),
        "SLURM_CLUSTER_NAME": "switchyard",
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_JOB_NODELIST": compress(nodes),
        "SLURM_NODELIST": compress(nodes),
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": nodes[0],
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_RESTART_COUNT": str(max(0, int(environ.get("YARD_ATTEMPT", "1")) - 1)),
        "SLURM_TASKS_PER_NODE": grouped(counts),
    }
    if environ.get("YARD_DEVICE_KIND", "cpu") != "cpu":
        told["SLURM_GPUS_ON_NODE"] = environ.get("YARD_DEVICES_PER_NODE", "0")
    if "SLURM_NTASKS" in environ:
        told["SLURM_NPROCS"] = environ["SLURM_NTASKS"]
    if "YARD_ARRAY_INDEX" in environ:
        told["SLURM_ARRAY_TASK_ID"] = environ["YARD_ARRAY_INDEX"]
        told["SLURM_ARRAY_JOB_ID"] = environ.get("YARD_ARRAY_JOB", job)
        told["SLURM_ARRAY_TASK_COUNT"] = environ.get("YARD_ARRAY_COUNT", "1")
    return {**told, **environ}


def enter(argv: list[str]) -> int:
    """Become a command, or a shell, with the variables of the batch script of this stage; waits for its start."""
    folder = os.path.join(os.environ.get("YARD_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "slurm")
    path, deadline = os.path.join(folder, "nodes.json"), time.monotonic() + ENTRY_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            print("salloc: error: the allocation has not come up", file=sys.stderr)
            return 1
        time.sleep(0.1)
    with open(os.path.join(folder, "environ.json")) as file:
        environ = json.load(file)
    environ["TERM"] = os.environ.get("TERM", environ.get("TERM", "dumb"))
    words = argv or [os.environ.get("SHELL") or "/bin/sh"]
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        print(f"salloc: error: {words[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _run_script(script: str, arguments: list[str], environ: dict[str, str], asked: dict[str, str]) -> int:
    """Run the script in a process group of its own; pass signals on to it, and wait for its group to end after a
    stop."""
    is_stopped = []
    cwd = asked.get("--chdir") or "."
    pipes = _Copies(asked, environ, cwd)
    try:
        child = subprocess.Popen(
            [script, *arguments], env=environ, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True, **pipes.ends
        )
    except OSError as error:
        if error.errno == 8:  # no #! line
            child = subprocess.Popen(
                ["/bin/sh", script, *arguments],
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **pipes.ends,
            )
        else:
            print(f"batch: the script cannot start: {error}", file=sys.stderr, flush=True)
            return 126
    pipes.start(child)

    def passed(number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            is_stopped.append(True)
        with contextlib.suppress(OSError):
            os.killpg(child.pid, number)

    for name in FORWARDED:
        signal.signal(getattr(signal, f"SIG{name}"), passed)
    timer = _early(asked.get("--signal", ""), child)
    status = child.wait()
    if timer:
        timer.cancel()
    while is_stopped and any(state != "Z" for _, state, _ in _group(child.pid)):
        # The shell goes at once when it is asked to; what it had started may still save something.
        time.sleep(0.1)
    pipes.finish()
    return status


def _early(word: str, child: subprocess.Popen[bytes]) -> threading.Timer | None:
    """Plan the signal of ``--signal`` before the time limit."""
    limit_s = float(os.environ.get("YARD_TIME_LIMIT_S") or 0)
    if not word or not limit_s:
        return None
    name, _, before = word.rpartition("@")
    is_script, number = name.startswith("B:"), getattr(signal, f"SIG{name.rpartition(':')[2]}")

    def send() -> None:
        step = [os.path.abspath(__file__).encode(), b"srun"]
        steps = [] if is_script else [pid for pid, _, words in _group(child.pid) if words[2:4] == step]
        with contextlib.suppress(OSError):
            for pid in steps or [child.pid]:
                os.kill(pid, number)

    timer = threading.Timer(max(0.0, limit_s - float(before)), send)
    timer.daemon = True
    timer.start()
    return timer


def _group(leader: int) -> Iterator[tuple[int, str, list[bytes]]]:
    """Yield the processes of a group: pid, state and words of the command."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name in brackets may hold anything; what follows the last bracket are numbers.
                    state, _, group, *_ = file.read().rpartition(b")")[2].split()
                if int(group) == leader:
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        yield int(name), state.decode(), file.read().split(b"\0")


class _Copies:
    """Copies what the script prints into the files of ``--output`` and ``--error``; the log has it too."""

    def __init__(self, asked: dict[str, str], environ: dict[str, str], cwd: str) -> None:
        self.ends: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._pumps: list[threading.Thread] = []
        mode = "ab" if asked.get("--open-mode") == "append" or environ["SLURM_RESTART_COUNT"] != "0" else "wb"
        for name, option in (("stdout", "--output"), ("stderr", "--error")):
            path = asked.get(option)
            if path:
                try:
                    self._files[name] = open(os.path.join(cwd, _filled(path, environ)), mode, buffering=0)  # noqa: SIM115
                except OSError as error:
                    print(f"batch: {option}: {error}", file=sys.stderr, flush=True)
                    continue
                self.ends[name] = subprocess.PIPE
        if "stdout" in self._files and "--error" not in asked:
            # Without a file of its own, standard error goes where standard output goes.
            self._files["stderr"] = self._files["stdout"]
            self.ends["stderr"] = subprocess.PIPE

    def start(self, child: subprocess.Popen[bytes]) -> None:
        for name, pipe, into in (("stdout", child.stdout, 1), ("stderr", child.stderr, 2)):
            if pipe is not None:
                pump = threading.Thread(target=self._copy, args=(pipe, into, self._files[name]), daemon=True)
                pump.start()
                self._pumps.append(pump)

    @staticmethod
    def _copy(pipe: Any, into: int, file: Any) -> None:
        while piece := os.read(pipe.fileno(), PIECE_BYTES):
            with contextlib.suppress(OSError):
                _all(into, piece)
            with contextlib.suppress(OSError):
                # A full disk loses the copy; the log goes on.
                file.write(piece)

    def finish(self) -> None:
        for pump in self._pumps:
            pump.join(LEFT_BEHIND_S)


# ----------------------------------------------------------------------------------------------------------------- srun

_WITH_VALUE = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "D": "chdir", "o": "output", "e": "error", "w": "nodelist",
    "W": "wait", "J": "job-name", "t": "time", "m": "distribution", "G": "gpus", "i": "input", "p": "partition",
    "A": "account", "q": "qos", "C": "constraint", "r": "relative", "x": "exclude", "b": "begin", "d": "dependency",
    "L": "licenses", "M": "clusters", "S": "core-spec", "T": "threads", "B": "extra-node-info",
}  # fmt: skip
_FLAGS = {
    "l": "label", "u": "unbuffered", "K": "kill-on-bad-exit", "v": "verbose", "Q": "quiet", "s": "oversubscribe",
    "O": "overcommit", "k": "no-kill", "Z": "no-allocate", "E": "preserve-env",
    "H": "hold", "I": "immediate", "X": "disable-status",
}  # fmt: skip
_LONG_VALUE = {
    *_WITH_VALUE.values(), "ntasks-per-node", "export", "open-mode", "gpus-per-task", "gpus-per-node", "gres", "mem",
    "mem-per-cpu", "mem-per-gpu", "cpu-bind", "cpu_bind", "mem-bind", "mpi", "gpu-bind", "hint", "threads-per-core",
    "gpu-freq", "cpu-freq", "network", "het-group", "jobid", "comment", "slurmd-debug", "gpus-per-socket",
    "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "cpus-per-gpu", "profile", "prolog", "epilog",
    "task-prolog", "task-epilog", "bcast", "accel-bind", "begin", "dependency", "reservation", "deadline", "priority",
    "signal", "mail-type", "mail-user", "acctg-freq", "bb", "bbf", "bcast-exclude", "cluster-constraint", "container",
    "container-id", "cores-per-socket", "delay-boot", "gres-flags", "mcs-label", "mincpus", "power",
    "sockets-per-node", "switches", "thread-spec", "time-min", "tmp", "tres-bind", "tres-per-task", "wckey",
}  # fmt: skip
_LONG_FLAG = {
    *_FLAGS.values(), "exclusive", "exact", "overlap", "whole", "interactive", "pty", "multi-prog", "kill-on-bad-exit",
    "contiguous", "use-min-nodes", "spread-job", "disable-status", "immediate", "resv-ports", "mpi-combine",
    "compress", "nice", "propagate", "oom-kill-step", "quit-on-interrupt", "reboot", "send-libs",
}  # fmt: skip
HETEROGENEOUS = "all tasks of a step have the same resources and one program; call srun twice, with & behind the first"
_REFUSED = {
    "pty": "yard exec opens a terminal in a job",
    "multi-prog": "",
    "bcast": "",
    "het-group": HETEROGENEOUS,
    "container": "name an image with `image` of the job file",
    "container-id": "name an image with `image` of the job file",
    "relative": "",
}


def srun_options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Read the options of ``srun``; return them and the command. Raises ValueError with a sentence."""
    found: dict[str, str] = {}
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-":
        word = argv[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in _LONG_VALUE and not equals:
                if at >= len(argv):
                    raise ValueError(f"option '--{name}' requires an argument")
                value, at = argv[at], at + 1
            elif name not in _LONG_VALUE and name not in _LONG_FLAG:
                raise ValueError(f"unrecognized option '--{name}'")
            found[name] = value
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "IK" and (letters or "-").isdecimal():  # -I60: a value that may be left out is attached
                found[_FLAGS[letter]], letters = letters, ""
            elif letter in _FLAGS:
                found[_FLAGS[letter]] = ""
            elif letter in _WITH_VALUE:
                if not letters and at < len(argv):
                    letters, at = argv[at], at + 1
                found[_WITH_VALUE[letter]] = letters
                letters = ""
            else:
                raise ValueError(f"invalid option -- '{letter}'")
    for name in found:
        if name in _REFUSED:
            raise ValueError(f"--{name} is not supported" + (f"; {_REFUSED[name]}" if _REFUSED[name] else ""))
    command = argv[at:]
    after = [*command[1:], ""]
    if any(word == ":" and (not at or after[at].startswith("-")) for at, word in enumerate(command)):
        raise ValueError(f"components of a step, with `:` between, are not supported; {HETEROGENEOUS}")
    return found, command


def srun(argv: list[str]) -> int:
    """Start one process for each task; return the highest exit code of them."""
    folder = os.environ.get(PLACE, "")
    try:
        options, command = srun_options(argv)
        if not command:
            raise ValueError("no command is given")
        with open(os.path.join(folder, "nodes.json")) as file:
            known = json.load(file)
        with open(os.path.join(folder, "environ.json")) as file:
            first = json.load(file)
        chosen, counts = _layout(options, known["nodes"])
    except ValueError as error:
        print(f"srun: error: {error}", file=sys.stderr)
        return 1
    except OSError:
        print("srun: error: there is no batch script around; outside of one, srun is slurm-compat's", file=sys.stderr)
        return 1
    return Run(options, command, known, first, chosen, counts).wait()


def _layout(options: dict[str, str], nodes: list[str]) -> tuple[list[int], list[int]]:
    """Return which nodes take part, by rank, and how many tasks each starts."""
    number = {}
    for name in ("ntasks", "ntasks-per-node", "cpus-per-task"):
        if name in options:
            if not re.fullmatch(r"[0-9]{1,6}", options[name]) or not int(options[name]):
                raise ValueError(f"--{name} must be a whole number above 0")
            number[name] = int(options[name])
    ranks = list(range(len(nodes)))
    if "nodelist" in options:
        wanted = list(expand(options["nodelist"]))
        missing = [name for name in wanted if name not in nodes]
        if missing:
            raise ValueError(f"node {missing[0]} is not of this job, which has {compress(nodes)}")
        ranks = [rank for rank in ranks if nodes[rank] in wanted]
    if "exclude" in options:
        left_out = set(expand(options["exclude"]))
        ranks = [rank for rank in ranks if nodes[rank] not in left_out]
    if "nodes" in options:
        least = options["nodes"].partition("-")[0]
        if not re.fullmatch(r"[0-9]{1,4}", least) or not 0 < int(least) <= len(ranks):
            raise ValueError(f"--nodes must be from 1 to {len(ranks)}, the nodes of this job")
        ranks = ranks[: int(least)]
    if not ranks:
        raise ValueError("no node is left")
    given_per_node = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    per_node = number.get("ntasks-per-node") or (int(given_per_node) if given_per_node.isdecimal() else 0)
    tasks = number.get("ntasks")
    if tasks is None:
        in_all = os.environ.get("SLURM_NTASKS", "")
        whole = "nodes" not in options and "ntasks-per-node" not in options and "nodelist" not in options
        tasks = int(in_all) if whole and in_all.isdecimal() else len(ranks) * (per_node or 1)
    if not 0 < tasks <= MOST_TASKS:
        raise ValueError(f"a step has from 1 to {MOST_TASKS} tasks")
    counts = spread(tasks, len(ranks))
    return ranks[: len(counts)], counts


class Run:
    """One step: its tasks here and at the stations, what they print, and how they end."""

    def __init__(
        self,
        options: dict[str, str],
        command: list[str],
        known: dict[str, Any],
        first: dict[str, str],
        chosen: list[int],
        counts: list[int],
    ) -> None:
        self.options, self.names = options, known["nodes"]
        self.total = sum(counts)
        self._events: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self._local: StepTasks | None = None
        self._links: dict[int, Link] = {}
        self._node_of: dict[int, int] = {}
        self._lock = threading.Lock()
        self._rest: dict[tuple[int, str], bytes] = {}
        labelled = "label" in options
        # From here on nothing is lost: a signal that comes while tasks start is passed on when they have.
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in FORWARDED:
            signal.signal(getattr(signal, f"SIG{name}"), lambda number, frame: self._signalled(number))
        step = _step_number(os.environ[PLACE])
        environ = {name: value for name, value in os.environ.items() if name != KEY}
        if "export" in options:
            environ = _exported(environ, options["export"])
        shared = self._described(chosen, counts, step)
        base = 0
        changed = {name: value for name, value in environ.items() if first.get(name) != value}
        removed = [name for name in first if name not in environ]
        work = known["work"]
        here = os.path.join(os.getcwd(), options.get("chdir", ""))
        for at, (rank, count) in enumerate(zip(chosen, counts)):  # noqa: B905 - Python 3.9
            ranks = list(range(base, base + count))
            base += count
            self._node_of.update(dict.fromkeys(ranks, rank))
            order = {
                "argv": command,
                "ranks": ranks,
                "each": {
                    **shared,
                    "SLURM_NODEID": str(at),
                    "SLURMD_NODENAME": self.names[rank],
                    "SLURM_GTIDS": ",".join(map(str, ranks)),
                },
                "stdout": _file_of(options, "output"),
                "stderr": _file_of(options, "error"),
                "appends": options.get("open-mode") == "append",
                "devices_per_task": options.get("gpus-per-task", "0").rpartition(":")[2],
            }
            if rank == 0:
                order["reads"] = self.total == 1
                printed = self._labelled if labelled else None
                self._local = StepTasks(order, environ, here, printed, self._task_ended)
            else:
                inside = os.path.relpath(here, work)
                order["cwd"] = here if inside.startswith("..") else inside
                order["changed"], order["removed"] = changed, removed
                self._order(rank, known, order)

    def _described(self, chosen: list[int], counts: list[int], step: int) -> dict[str, str]:
        names = compress([self.names[rank] for rank in chosen])
        cpus = {"SLURM_CPUS_PER_TASK": self.options["cpus-per-task"]} if "cpus-per-task" in self.options else {}
        return {
            **cpus,
            "SLURM_STEP_ID": str(step),
            "SLURM_STEPID": str(step),
            "SLURM_NTASKS": str(self.total),
            "SLURM_NPROCS": str(self.total),
            "SLURM_STEP_NUM_TASKS": str(self.total),
            "SLURM_STEP_NUM_NODES": str(len(chosen)),
            "SLURM_STEP_NODELIST": names,
            "SLURM_STEP_TASKS_PER_NODE": grouped(counts),
            "SLURM_NNODES": str(len(chosen)),
        }

    def _order(self, rank: int, known: dict[str, Any], order: dict[str, Any]) -> None:
        """Give a station its order, and listen to it in a thread."""
        try:
            line = socket.create_connection(tuple(known["stations"][str(rank)]), timeout=HANDSHAKE_S)
            link = greet(line, bytes.fromhex(known["key"]), is_listener=False)
            link.send("order", **order)
        except (OSError, BrokenLink, KeyError) as error:
            self._lost(rank, order["ranks"], str(error))
            return
        self._links[rank] = link
        threading.Thread(target=self._listen, args=(rank, link, set(order["ranks"])), daemon=True).start()

    def _listen(self, rank: int, link: Link, left: set[int]) -> None:
        try:
            while left:
                word, content = link.receive()
                if word["kind"] == "printed":
                    self._printed(word["rank"], word["stream"], content)
                elif word["kind"] == "ended":
                    left.discard(word["rank"])
                    self._task_ended(word["rank"], word["code"])
        except BrokenLink as error:
            self._lost(rank, sorted(left), str(error))
        link.close()

    def _lost(self, rank: int, tasks: Sequence[int], why: str) -> None:
        print(f"srun: error: {self.names[rank]}: no answer: {why}", file=sys.stderr, flush=True)
        for task in tasks:
            self._events.put(("lost", task, 1))

    def _task_ended(self, task: int, code: int) -> None:
        self._events.put(("ended", task, code))

    # -- what is printed

    def _printed(self, task: int, stream: str, piece: bytes) -> None:
        if "label" in self.options:
            self._labelled(task, stream, piece)
        else:
            with self._lock:
                _all(1 if stream == "out" else 2, piece)

    def _labelled(self, task: int, stream: str, piece: bytes) -> None:
        with self._lock:
            whole = self._rest.pop((task, stream), b"") + piece
            lines, newline, rest = whole.rpartition(b"\n")
            if len(rest) > PIECE_BYTES:
                lines, newline, rest = whole, b"\n", b""
            if newline:
                self._write(task, stream, lines)
            self._rest[(task, stream)] = rest

    def _write(self, task: int, stream: str, lines: bytes) -> None:
        label = f"{task:>{len(str(self.total - 1))}}: ".encode()
        _all(1 if stream == "out" else 2, b"".join(label + line + b"\n" for line in lines.split(b"\n")))

    # -- signals and ends

    def _signalled(self, number: int) -> None:
        self._asked.put(signal.Signals(number).name[3:])
        self._events.put(("signal", 0, 0))

    def _pass_on(self, name: str) -> None:
        if self._local is not None:
            self._local.signal(name)
        for link in list(self._links.values()):
            with contextlib.suppress(BrokenLink):
                link.send("signal", name=name)

    def wait(self) -> int:
        """Wait for all tasks; return the highest of their exit codes."""
        left, worst, kill_at, is_told = set(self._node_of), 0, None, False
        patience = self.options.get("wait", "0")
        while left:
            try:
                kind, task, code = self._events.get(
                    timeout=None if kill_at is None else max(0, kill_at - time.monotonic())
                )
            except queue.Empty:
                self._pass_on("KILL" if is_told else "TERM")
                is_told, kill_at = True, time.monotonic() + KILL_WAIT_S
                continue
            if kind == "signal":
                self._pass_on(self._asked.get())
                continue
            left.discard(task)
            worst = max(worst, 128 - code if code < 0 else code)
            if code:
                self._tell(task, code)
            if code and self.options.get("kill-on-bad-exit", "0") != "0" and not is_told:
                self._pass_on("TERM")
                is_told, kill_at = True, time.monotonic() + KILL_WAIT_S
            elif patience.isdecimal() and int(patience) and kill_at is None:
                kill_at = time.monotonic() + int(patience)
        for (task, stream), rest in self._rest.items():
            if rest:
                self._write(task, stream, rest)
        return worst

    def _tell(self, task: int, code: int) -> None:
        how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or f"Signal {-code}"
        node = self.names[self._node_of[task]]
        print(f"srun: error: {node}: task {task}: {how}", file=sys.stderr, flush=True)


def _file_of(options: dict[str, str], name: str) -> str:
    path = options.get(name, "")
    if path.lower() == "none":
        return "/dev/null"
    return "" if path.lower() == "all" else path


def _exported(environ: dict[str, str], wanted: str) -> dict[str, str]:
    """Return what ``--export`` leaves: ALL, NONE, names, and names with values."""
    words = [word for word in wanted.split(",") if word]
    kept = (
        dict(environ)
        if "ALL" in words
        else {
            name: value
            for name, value in environ.items()
            if name.startswith(("SLURM_", "YARD_")) or name in (PLACE, "PATH", "TMPDIR") or name in words
        }
    )
    return {**kept, **{word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}}


def _step_number(folder: str) -> int:
    """Return the number of this step: steps of a job are counted from 0."""
    number = 0
    while True:
        try:
            os.close(os.open(os.path.join(folder, f"step.{number}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return number
        except FileExistsError:
            number += 1


# ------------------------------------------------------------------------------------------------------------- scontrol


def scontrol(argv: list[str]) -> int:
    """Answer ``scontrol show hostnames`` and ``show hostlist``, which need no cluster."""
    words = [word for word in argv if not word.startswith("-")]
    if len(words) >= 2 and words[0] == "show" and words[1].startswith("hostname"):
        text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
        try:
            names = list(expand(text))
        except ValueError as error:
            print(f"scontrol: error: {error}", file=sys.stderr)
            return 1
        print("\n".join(names))
        return 0
    if len(words) == 3 and words[0] == "show" and words[1].startswith("hostlist"):
        print(compress([name for name in words[2].split(",") if name]))
        return 0
    print("scontrol: error: within a job there are `show hostnames` and `show hostlist`", file=sys.stderr)
    return 1


# ---------------------------------------------------------------------------------------------------------------- small


def _split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _write(path: str, content: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)


def _all(into: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(into, piece) :]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def main(argv: list[str]) -> int:
    act = {"batch": batch, "srun": srun, "scontrol": scontrol, "enter": enter}.get(argv[0] if argv else "")
    if act is None:
        print("say batch, srun or scontrol", file=sys.stderr)
        return 2
    return act(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
