"""A lease ends when it must: by answers alone, before a late start, and whatever a disk, an agent or an engine does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.isolation.prctl import CHILD_SUBREAPER, prctl
from agents.protocol import Phase
from agents.supervisor import lease, life, procfs
from agents.supervisor.record import claim, read_whole, stop_told, tell_stop, write_whole
from tests.agents.conftest import Hands
from tests.agents.yard import order

Names = Callable[[], str]
spans = st.floats(0.0, 1e6)


@given(spans, spans, spans, spans)
def test_a_deadline_follows_from_promise_and_renewals_alone(
    tmp_path_factory: pytest.TempPathFactory, promised: float, renewed: float, lease_s: float, now: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "lease"
    path.write_text(str(renewed))
    told = {"lease_s": lease_s, "lease": str(path), "lease_until": promised}
    ends_at = lease.deadline(told, now)
    assert ends_at is not None
    assert ends_at >= promised
    assert ends_at <= max(promised, now + lease_s), "no note of another boot makes it later"
    if renewed <= now:
        assert ends_at == max(promised, renewed + lease_s)
    assert lease.deadline({**told, "lease_s": None}, now) is None


@pytest.mark.parametrize("text", ["", "nan", "inf", "-5", "1e400", "soon", "\0"])
def test_what_is_no_time_renews_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "lease").write_text(text)
    assert lease.renewed_at(str(tmp_path / "lease"), 1000.0) == 0.0


def run_a_life(folder: Path, during: Callable[[], None] = lambda: None, **told: object) -> dict[str, object]:
    """Have a shim of this test's own, in a fork, run a part to its end; answers its exit file."""
    (folder / "work").mkdir(parents=True)
    (folder / "lease").write_text(f"{procfs.boottime():.3f}")
    made = {
        "part": "p", "argv": ["sh", "-c", "echo ran >> ran; sleep 60"], "env": {"PATH": os.environ["PATH"]},
        "cwd": str(folder / "work"), "bell": str(folder / "bell"), "notice": str(folder / "notice"),
        "reports": str(folder / "report.jsonl"), "lease": str(folder / "lease"), "grace_s": 0.2, **told,
    }  # fmt: skip
    write_whole(str(folder / "order.json"), made)
    pid = os.fork()
    if pid == 0:
        try:
            prctl(CHILD_SUBREAPER, 1)
            wake, writer = os.pipe()
            os.set_blocking(wake, False)
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            claimed = claim(str(folder), {"pid": os.getpid()})
            assert claimed is not None
            life.Life(str(folder), claimed[1], {"pid": os.getpid()}, claimed[0], wake).live()
        finally:
            os._exit(0)
    during()
    os.waitpid(pid, 0)
    found = read_whole(str(folder / "exit.json"))
    assert found is not None
    return found


def test_a_start_after_its_deadline_never_runs(tmp_path: Path) -> None:
    """The order lay there for long: its inputs came late, or an agent that started again found it."""
    folder = tmp_path / "late"
    folder.mkdir()
    stale = procfs.boottime() - 100

    end = run_a_life(folder / "a", lease_s=50.0, lease_until=stale, lease=str(folder / "none"))
    assert end["cause"] == "LEASE_EXPIRED"
    assert not (folder / "a" / "work" / "ran").exists()
    assert end["ran_s"] == 0.0


def hangs_for_ever(*_: object) -> None:
    """Stands for a chdir, or anything else on the way to exec, on a disk that does not answer."""
    while True:
        select.select([], [], [], 60)


@pytest.mark.parametrize("why", ["stop", "lease"])
def test_a_child_that_never_comes_to_exec_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(life, "run_command", hangs_for_ever)
    folder = tmp_path / "hung"

    def stop() -> None:
        write_whole(str(folder / "stop.json"), {"why": "CANCELLED", "grace_s": 0.1})

    if why == "stop":
        end = run_a_life(folder, during=stop)
        assert end["stopped"]
    else:
        end = run_a_life(folder, lease_s=0.3)
        assert end["cause"] == "LEASE_EXPIRED"


def test_a_disk_that_hangs_while_it_is_looked_at_does_not_stretch_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.supervisor.saving.signature", hangs_for_ever)
    folder = tmp_path / "hung"

    def stop() -> None:
        write_whole(str(folder / "watch.json"), {"folder": str(tmp_path)})
        write_whole(str(folder / "stop.json"), {"why": "CANCELLED", "grace_s": 0.1})

    assert run_a_life(folder, during=stop, argv=["sh", "-c", "trap '' TERM; sleep 60 & wait; wait"])["stopped"]


def test_messages_that_answer_nothing_renew_no_lease(hands: Hands, part: Names) -> None:
    """The way up is cut: what is sent arrives nowhere, and what comes down says so by answering nothing."""
    hands.start()
    name = part()
    hands.yard.want(hands.name, order(name, "sleep", "300", lease_s=1.5, grace_s=0.2))
    hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.yard.answers_nothing = True
    while not hands.yard.side(hands.name).ended.get(name):
        hands.yard.want(hands.name)  # an order that nobody asked for
        time.sleep(0.2)
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "LEASE_EXPIRED"


def test_a_stop_is_told_on_a_disk_that_is_full(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk to fill")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    folder = disk / "part"

    def fill_and_stop() -> None:
        while not (folder / "work" / "ran").exists():
            time.sleep(0.01)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        with pytest.raises(OSError, match="No space"):
            write_whole(str(folder / "any.json"), {"is": "x" * 5000})
        tell_stop(str(folder), 0.1, "CANCELLED", save=False)
        assert stop_told(str(folder)) == {"grace_s": 0.1, "why": "CANCELLED", "save": False}
        while (folder / "exit.json.draft").exists() is False and not (folder / "exit.json").exists():
            time.sleep(0.01)
        (disk / "filler").unlink()

    try:
        end = run_a_life(folder, during=fill_and_stop)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert end["stopped"]
