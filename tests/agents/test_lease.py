"""A part under a lease never runs on after the control plane may have given it up: the laws, and the real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.link.renewal import MOST_UNANSWERED, Renewal
from agents.protocol import Desired, Phase, Timers
from agents.supervisor import procfs
from agents.supervisor.lease import extended, over_at
from agents.supervisor.procfs import boottime
from agents.supervisor.record import read_whole, write_whole
from tests.agents.conftest import ROOT, Hands
from tests.agents.yard import order

Names = Callable[[], str]
LEASE_S = 60.0
times = st.floats(0, 1e6)
ACTIONS = ("send", "store", "answer", "nudge", "reconnect", "restart", "look")


@given(times, times, times, st.floats(1, 1e4))
def test_an_extension_is_never_earlier_and_a_chain_that_began_later_extends_nothing(
    until: float, renewed_at: float, since: float, lease_s: float
) -> None:
    end = over_at(until, renewed_at, since, lease_s)
    assert end in (until, renewed_at + lease_s)
    assert end >= until
    assert since <= until or end == until
    assert over_at(end, renewed_at, since, lease_s) >= end


class World:
    """An agent, its control plane and the part between them, each with what it knows; time passes where it is told to.

    ``is_given_up`` becomes true as soon as the control plane might have started the part somewhere else.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lease"
        self.now = 1000.0
        self.renewal = Renewal(self.path, "boot")
        self.seq = 0
        self.up: deque[tuple[int, float]] = deque()
        self.down: deque[tuple[int, bool]] = deque()
        self.stored_at = self.now
        self.until: float | None = None
        self.is_given_up = self.is_dead = False

    def wait(self, span_s: float) -> None:
        self.now += span_s
        self.is_given_up |= self.now - self.stored_at > LEASE_S

    def send(self) -> None:
        self.seq += 1
        self.renewal.sent(self.seq, self.now)
        self.up.append((self.seq, self.now))

    def store(self) -> None:
        if self.up:
            self.stored_at = self.now
            self.down.append((self.up.popleft()[0], not self.is_given_up))

    def answer(self) -> None:
        if self.down:
            seq, has_part = self.down.popleft()
            self.renewal.answered(seq, LEASE_S, self.now)
            if has_part and self.until is None and not self.renewal.is_over(LEASE_S, self.now):
                self.until = self.renewal.until(LEASE_S)

    def nudge(self) -> None:
        assert not self.renewal.answered(0, LEASE_S, self.now)

    def reconnect(self) -> None:
        self.renewal.connect()
        self.up.clear()
        self.down.clear()

    def restart(self) -> None:
        self.reconnect()
        self.renewal = Renewal(self.path, "boot")

    def look(self) -> None:
        """The shim looks, which it does late or early, and before it starts the command too."""
        if self.until is None or self.is_dead:
            return
        self.until = extended(str(self.path), self.until, LEASE_S)
        self.is_dead = self.now >= self.until
        assert self.is_dead or not self.is_given_up


# Reports that were held up until the node had been given up: each was sent in time, and all are answered at once.
HELD_UP = [("send", 0), ("store", 0), ("answer", 0), ("send", 50), ("send", 50)]
HELD_UP += [("store", 0), ("store", 0), ("answer", 0), ("answer", 0)]


@example(HELD_UP)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 90)), max_size=60))
def test_whatever_is_lost_or_late_no_part_lives_that_was_given_up(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for action, span_s in steps:
            world.wait(span_s)
            getattr(world, action)()
        world.look()


@given(st.integers(1, 40))
def test_a_node_that_is_answered_in_time_keeps_its_parts(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for _ in range(count):
            for step in (world.send, world.store, world.answer, world.look):
                world.wait(7)
                step()
        assert world.until is not None
        assert not world.is_dead
        assert world.until > world.now


def test_a_lease_of_another_boot_is_none(tmp_path: Path) -> None:
    first = Renewal(tmp_path / "lease", "boot-1")
    first.sent(1, 100.0)
    assert first.answered(1, LEASE_S, 101.0)
    assert not Renewal(tmp_path / "lease", "boot-1").is_over(LEASE_S, 120.0)
    assert Renewal(tmp_path / "lease", "boot-2").is_over(LEASE_S, 120.0)


def test_reports_that_nobody_answers_are_forgotten_oldest_first(tmp_path: Path) -> None:
    renewal = Renewal(tmp_path / "lease", "boot")
    for seq in range(1, MOST_UNANSWERED + 3):
        renewal.sent(seq, float(seq))
    assert not renewal.answered(1, LEASE_S, 2000.0)
    assert renewal.answered(3, LEASE_S, 2000.0)


def test_a_server_that_does_not_say_what_it_answers_renews_with_whatever_it_sends(tmp_path: Path) -> None:
    assert Desired(generation=1).answers_seq is None
    renewal = Renewal(tmp_path / "lease", "boot")
    assert not renewal.answered(None, LEASE_S, 1.0)
    renewal.sent(1, 10.0)
    renewal.sent(2, 20.0)
    assert renewal.answered(None, LEASE_S, 21.0)
    assert renewal.until(LEASE_S) == 80.0


# -- real processes


def wait_until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.02)


def test_orders_that_answer_nothing_renew_nothing(hands: Hands, part: Names) -> None:
    """The control plane hears no report any more, but goes on to say what it wants."""
    hands.start()
    name = part()
    hands.yard.want(hands.name, order(name, "sleep", "300", lease_s=2.0, grace_s=0.5))
    hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.yard.is_deaf = True
    try:
        wait_until(lambda: hands.yard.want(hands.name) or ended(hands, name))
    finally:
        hands.yard.is_deaf = False
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "LEASE_EXPIRED"


def ended(hands: Hands, name: str) -> bool:
    return (hands.state / "parts" / name / "exit.json").exists()


def test_a_grace_counts_from_the_lease_s_end_whenever_that_is_noticed(
    hands: Hands, part: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent and shim are frozen beyond lease and grace: nobody is asked politely any more, and nothing revives it."""
    monkeypatch.setattr(hands.yard, "timers", Timers(report_s=0.3, lease_s=1.5))
    hands.start()
    name = part()
    script = f'trap "touch {tmp_path}/asked" TERM; while :; do sleep 0.02; done'
    hands.yard.want(hands.name, order(name, "sh", "-c", script, lease_s=1.5, grace_s=1.0))
    here = hands.yard.phase(hands.name, name, Phase.RUNNING)
    assert here.pid is not None
    own, agent = hands.shim_of(name), hands.process
    assert agent is not None
    agent.send_signal(signal.SIGSTOP)
    os.kill(own["pid"], signal.SIGSTOP)
    frozen_at = boottime()
    wait_until(lambda: boottime() > frozen_at + 3.0)
    agent.send_signal(signal.SIGCONT)
    wait_until(lambda: float((hands.state / "lease").read_text()) > frozen_at + 2.5)
    assert procfs.is_alive(here.pid, here.pid_start or 0)
    os.kill(own["pid"], signal.SIGCONT)
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert (end.cause, end.signal) == ("LEASE_EXPIRED", signal.SIGKILL)
    assert not (tmp_path / "asked").exists()


HANGS = """
import os, signal, sys
def hang(*_):
    open(sys.argv[1] + "/hangs", "w").close()
    while True:
        signal.pause()
if sys.argv[2]:
    setattr(os, sys.argv[2], hang)
from agents.supervisor.shim import Shim
Shim().serve(sys.argv[1])
"""


@contextmanager
def shim(folder: Path, hangs_in: str = "", **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A shim of its own with an order to make the file ``ran``. Its child hangs for ever in a call of ``os``, as in a
    folder of a file server that is gone."""
    told = {
        "part": folder.name,
        "argv": ["/usr/bin/touch", str(folder / "ran")],
        "env": {},
        "cwd": "/",
        "folders": [str(folder / "saved")],
        "notice": str(folder / "notice.json"),
        "reports": str(folder / "report.jsonl"),
        "bell": str(folder / "bell"),
        "lease": str(folder / "lease"),
        "grace_s": 60.0,
    }
    write_whole(str(folder / "order.json"), {**told, **more})
    with subprocess.Popen([sys.executable, "-c", HANGS, str(folder), hangs_in], cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def end_of(folder: Path) -> dict[str, Any]:
    wait_until((folder / "exit.json").exists)
    return read_whole(str(folder / "exit.json")) or {}


@pytest.mark.parametrize("call", ["chdir", "lstat"])
def test_a_stop_reaches_a_child_that_hangs_before_its_command(tmp_path: Path, call: str) -> None:
    with shim(tmp_path, call) as process:
        wait_until((tmp_path / "hangs").exists)
        write_whole(str(tmp_path / "stop.json"), {"grace_s": 60.0, "why": "CANCELLED"})
        process.send_signal(signal.SIGUSR1)
        end = end_of(tmp_path)
    assert (end["cause"], end["stopped"], end["code"]) == ("", True, None)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("call", ["chdir", "lstat"])
def test_a_lease_ends_a_child_that_hangs_before_its_command(tmp_path: Path, call: str) -> None:
    with shim(tmp_path, call, lease_s=1.0, lease_until=boottime() + 1.0):
        end = end_of(tmp_path)
    assert (tmp_path / "hangs").exists()
    assert (end["cause"], end["code"]) == ("LEASE_EXPIRED", None)
    assert not (tmp_path / "ran").exists()


def test_an_order_that_is_claimed_after_its_lease_runs_nothing(tmp_path: Path) -> None:
    """As by a fork that came late, or when an agent starts again and finds an order that nobody took."""
    with shim(tmp_path, lease_s=60.0, lease_until=boottime() - 0.001):
        assert end_of(tmp_path)["cause"] == "LEASE_EXPIRED"
    assert not (tmp_path / "ran").exists()


def test_an_order_under_a_lease_that_was_renewed_meanwhile_runs(tmp_path: Path) -> None:
    renewal = Renewal(tmp_path / "lease", procfs.boot_id())
    renewal.sent(1, boottime() - 100.0)
    renewal.answered(1, LEASE_S, boottime() - 99.0)
    until = renewal.until(LEASE_S)
    for seq, ago_s in ((2, 50.0), (3, 0.0)):
        renewal.sent(seq, boottime() - ago_s)
        renewal.answered(seq, LEASE_S, boottime() - ago_s)
    with shim(tmp_path, lease_s=LEASE_S, lease_until=until):
        assert end_of(tmp_path)["cause"] == ""
    assert (tmp_path / "ran").exists()


def test_the_last_look_is_after_everything_that_can_wait(tmp_path: Path) -> None:
    """The child is stopped in its chdir until the lease is over, and so is its shim: there is nobody but itself."""
    late = HANGS.replace(
        "while True:\n        signal.pause()", "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(1.5)"
    )
    assert late != HANGS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.HANGS", "import time\n" + late)
        with shim(tmp_path, "chdir", lease_s=1.0, lease_until=boottime() + 1.0) as process:
            wait_until((tmp_path / "hangs").exists)
            child = psutil.Process(process.pid).children()[0]
            wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
            process.send_signal(signal.SIGCONT)
            end = end_of(tmp_path)
    assert end["cause"] == "LEASE_EXPIRED"
    assert not (tmp_path / "ran").exists()
