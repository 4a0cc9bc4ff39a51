"""A signal at the worst moment of a start: the keeper is there, and the launcher does not hold it yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import launcher
from deploy.local.home import Home
from deploy.local.launcher import Interrupted, Stack, interrupt_on_signals, uninterrupted
from deploy.local.options import Options
from deploy.local.service import ROOT


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in launcher.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", launcher.STOP_SIGNALS)
def test_a_keeper_that_just_began_is_ended_too(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[subprocess.Popen[bytes]] = []

    def begin(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        began.append(real(*words, **more))
        os.kill(os.getpid(), number)  # heard before the caller can assign what this returns
        return began[-1]

    real = subprocess.Popen
    interrupt_on_signals()
    monkeypatch.setattr(launcher.subprocess, "Popen", begin)
    with pytest.raises(Interrupted), Stack(Home(tmp_path / "home"), Options(port=1, simulate="", fresh=False)):
        pytest.fail("it must not be entered")
    (keeper,) = began
    assert keeper.returncode is not None, "the launcher left before its keeper"
    assert keeper.stdout is not None
    keeper.stdout.close()


def test_a_signal_is_heard_at_the_end_of_what_it_may_not_interrupt() -> None:
    done = []

    def signalled() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("all of it")

    interrupt_on_signals()
    with pytest.raises(Interrupted):
        signalled()
    assert done == ["all of it"]


def test_a_quiet_block_leaves_the_handlers_as_they_were() -> None:
    interrupt_on_signals()
    before = [signal.getsignal(number) for number in launcher.STOP_SIGNALS]
    with uninterrupted():
        pass
    assert [signal.getsignal(number) for number in launcher.STOP_SIGNALS] == before


def test_signals_are_heard_in_a_suite_that_nohup_started() -> None:
    """What ignores that its terminal goes away has the suites, and all that they start, ignore it too."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__, "-k", "keeper_that_just_began"],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
