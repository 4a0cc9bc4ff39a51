"""``yard exec`` from end to end: a real stack, a job that runs, and the command as people type it on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from switchyard.client import JobRecord
from switchyard.problem import ApiProblem
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on, processes_of

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as environment, standing() as up:
        environment.setenv("YARD_TIMERS", "report_s=1,suspect_s=2,lost_s=4,lease_s=5")
        environment.setenv("YARD_SESSION_IDLE_S", "8")
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
        made.wait(timeout_s=60)


def environment_of(yard: Yard) -> dict[str, str]:
    token = yard.client.wire._token
    return {**os.environ, "YARD_URL": yard.client.url, "YARD_TOKEN": token, "TERM": "xterm"}


def exec_(yard: Yard, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "switchyard", "exec", *words]
    return subprocess.run(command, env=environment_of(yard), input=given, capture_output=True, timeout=90, check=False)


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
    assert process.wait(60) == 9
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
    job.wait(timeout_s=60)
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
    assert process.wait(60) == 130
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
