"""``yard exec`` from end to end: a real stack, a job that runs, and the command as people type it on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

from switchyard.client import JobRecord
from switchyard.forward import Forward
from switchyard.problem import ApiProblem
from tests.chaos.stack import WEB, eventually, standing
from tests.chaos.test_job import TIMERS, Yard, on, processes_of

pytestmark = pytest.mark.chaos

# Longer than it takes to open three sessions, on however busy a machine.
IDLE_S = 15


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", TIMERS)
        environment.setenv("YARD_SESSION_IDLE_S", str(IDLE_S))
        environment.setenv("YARD_SESSIONS_PER_USER", "3")
        up.started()
        yield from on(up)


@pytest.fixture
def job(yard: Yard) -> Iterator[JobRecord]:
    """A job that runs."""
    made = yard.client.jobs.submit({"name": "entered", "run": "sleep 600", "env": {"COLOUR": "blue"}})
    assert eventually(lambda: made.refresh().stages[0]["state"] == "RUNNING")
    yield made
    if not made.refresh().is_final:
        yard.client.jobs.cancel(made)
        made.wait(timeout_s=240)


def environment_of(yard: Yard) -> dict[str, str]:
    token = yard.client.wire._token
    return {**os.environ, "YARD_URL": yard.client.url, "YARD_TOKEN": token, "TERM": "xterm"}


def exec_(yard: Yard, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "switchyard", "exec", *words]
    return subprocess.run(command, env=environment_of(yard), input=given, capture_output=True, timeout=240, check=False)


def events(yard: Yard, job: JobRecord, kind: str) -> list[dict[str, Any]]:
    return [each for each in yard.client.wire.get(f"/jobs/{job.number}/events")["results"] if each["kind"] == kind]


def test_a_command_runs_beside_the_jobs_and_both_ends_are_events(yard: Yard, job: JobRecord) -> None:
    script = 'echo "$COLOUR $YARD_JOB_ID"; echo oops >&2; exit 7'
    done = exec_(yard, str(job.number), "--reason", "to see", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"blue {job.number}\n".encode(), b"oops\n")
    (entered,) = events(yard, job, "entered")
    assert entered["params"]["reason"] == "to see"
    assert "sh -c" in entered["text"]
    assert eventually(lambda: bool(events(yard, job, "left")))
    (left,) = events(yard, job, "left")
    assert left["params"]["exit_code"] == 7
    assert left["actor"] == entered["actor"] == job["user"]
    whole = bytes(range(256)) * 4_000
    assert exec_(yard, "-i", str(job.number), "--", "cat", given=whole).stdout == whole
    assert exec_(yard, str(job.number), "--", "no-such-command").returncode == 5


def test_on_a_terminal_it_is_a_shell_with_the_terminals_size(yard: Yard, job: JobRecord) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "switchyard", "exec", "-it", str(job.number)],
        env=environment_of(yard), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    shown = b""

    def shows(words: bytes) -> bool:
        nonlocal shown
        os.set_blocking(ours, False)
        try:
            shown += os.read(ours, 65_536)
        except BlockingIOError:
            pass
        return words in shown

    os.write(ours, b"stty size\n")
    assert eventually(lambda: shows(b"31 97")), shown
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 22, 66, 0, 0))
    assert eventually(lambda: shows(b"22 66") or os.write(ours, b"stty size\n") == 0), shown
    os.write(ours, b"sleep 300\n")
    mark = f"YARD_JOB_ID={job.number}"
    assert eventually(lambda: any("sleep 300" in " ".join(each.cmdline()) for each in inside(job))), mark
    os.write(ours, b"\x03")
    os.write(ours, b"echo code $?; exit 9\n")
    assert eventually(lambda: shows(b"code 130")), shown
    assert process.wait(240) == 9
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def inside(job: JobRecord) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("YARD_JOB_ID") == str(job.number) and "YARD_SESSION_ID" in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_who_is_inside_ends_with_the_stage(yard: Yard, job: JobRecord) -> None:
    entry = yard.client.jobs.enter(job, ["sh", "-c", "trap '' HUP TERM; echo in; sleep 500"])
    heard = iter(entry)
    assert next(heard) == (1, b"in\n")
    yard.client.jobs.cancel(job)
    with pytest.raises(ApiProblem, match="the stage ended"):
        next(heard)
    entry.close()
    job.wait(timeout_s=240)
    assert inside(job) == []
    assert eventually(lambda: bool(events(yard, job, "left")))


def test_who_leaves_leaves_nothing_behind(yard: Yard, job: JobRecord) -> None:
    command = [sys.executable, "-m", "switchyard", "exec", str(job.number), "--", "sleep", "501"]
    process = subprocess.Popen(command, env=environment_of(yard), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert eventually(lambda: bool(inside(job)))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert eventually(lambda: not inside(job))
    assert eventually(lambda: bool(events(yard, job, "left")))
    assert "went away" in events(yard, job, "left")[0]["text"]
    process = subprocess.Popen(command, env=environment_of(yard), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert eventually(lambda: bool(inside(job)))
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    process.communicate()


def test_sessions_are_few_and_end_when_nothing_moves(yard: Yard, job: JobRecord) -> None:
    held = [yard.client.jobs.enter(job, ["sleep", "502"]) for _ in range(3)]
    with pytest.raises(ApiProblem, match="3 sessions open") as refused:
        yard.client.jobs.enter(job, ["true"])
    assert refused.value.status == 429
    for entry in held:
        with pytest.raises(ApiProblem, match="nothing was typed or shown"):
            next(iter(entry))
        entry.close()
    assert eventually(lambda: not inside(job))
    with yard.client.jobs.enter(job, ["true"]) as entry:
        assert list(entry) == []
    assert entry.code == 0
    assert not processes_of("sleep 502")


def test_a_port_of_the_stage_is_reached_from_here_and_no_other(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    script = f"head -c 3000000 /dev/zero > big; echo hello > a; exec python3 -m http.server {port} --bind 127.0.0.1"
    job = yard.client.jobs.submit({"name": "serves", "run": script})
    assert eventually(lambda: job.refresh().state == "RUNNING")
    command = [sys.executable, "-m", "switchyard", "port-forward", str(job.number)]

    def forwards() -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, f":{port}", "--reason", "to look"], env=environment_of(yard), **pipes)  # type: ignore[call-overload,no-any-return]

    started = forwards()
    while not (line := started.stdout.readline()):  # the stage may not listen yet
        assert "does not listen" in started.communicate()[1]
        started = forwards()
    url = f"http://{line.split()[0]}"
    assert f"port {port} of main on " in line
    with ThreadPoolExecutor(8) as many:
        small = [many.submit(lambda: urlopen(f"{url}/a", timeout=240).read()) for _ in range(30)]
        large = urlopen(f"{url}/big", timeout=240).read()
        assert {each.result() for each in small} == {b"hello\n"}
    assert large == bytes(3_000_000)
    gateway = urlsplit(yard.up.agents_url).port
    other = subprocess.run(
        [*command, f":{gateway}"], env=environment_of(yard), capture_output=True, text=True, timeout=240, check=False
    )
    assert other.returncode == 5
    assert f"does not listen on port {gateway} of its node; it listens on {port} (" in other.stderr
    (entered, _refused) = events(yard, job, "entered")
    assert f"forwards port {port} of main" in entered["text"]
    assert eventually(lambda: len(events(yard, job, "left")) == 1)
    yard.client.jobs.cancel(job)
    assert started.wait(240) == 5
    assert "the stage ended" in started.communicate()[1]
    job.wait(timeout_s=240)


def test_a_port_that_nobody_uses_is_closed_and_one_in_use_is_not(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    echo = f"import socket\nhere = socket.create_server(('127.0.0.1', {port}))\n"
    echo += "while True:\n    link, _ = here.accept()\n    while piece := link.recv(9): link.sendall(piece)"
    job = yard.client.jobs.submit({"name": "echoes", "command": ["python3", "-c", echo]})
    assert eventually(lambda: job.refresh().state == "RUNNING")

    def opened() -> Forward | None:
        try:
            return yard.client.jobs.forward(job, port).__enter__()
        except ApiProblem:
            return None

    there: list[Forward] = []
    assert eventually(lambda: bool(there.append(found) or there if (found := opened()) else False))
    with socket.create_connection(("127.0.0.1", there[0].local_port)) as link:
        for _ in range(IDLE_S + 3):  # longer than the time in which something has to move
            link.sendall(b"x")
            assert link.recv(1) == b"x"
            time.sleep(1)
    with pytest.raises(ApiProblem, match="nothing was typed or shown"):
        there[0].wait()
    there[0].close()
    yard.client.jobs.cancel(job)
    job.wait(timeout_s=240)


def test_a_wait_follows_the_stream_through_a_restart_of_the_server(yard: Yard) -> None:
    job = yard.client.jobs.submit({"name": "waited for", "run": "while [ ! -e go ]; do sleep 0.2; done; exit 4"})
    assert eventually(lambda: job.refresh().state == "RUNNING")
    command = [sys.executable, "-m", "switchyard", "wait", str(job.number), "--watch", "--timeout", "5m"]
    waiting = subprocess.Popen(command, env=environment_of(yard), stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == f"job {job.number} RUNNING\n"
    server = yard.up.named(WEB)
    server.kill()
    server.wait(30)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(3)
    assert eventually(yard.up.is_ready)
    with yard.client.jobs.enter(job, ["touch", "go"]) as inside_of_it:
        assert list(inside_of_it) == []
    assert waiting.wait(240) == 4
    assert "FAILED" in waiting.communicate()[1]
