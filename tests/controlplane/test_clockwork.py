"""The clockwork of a worker: it runs cycles that are asked for, and others too; a fault ends neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from controlplane.operations import watch
from controlplane.scheduling import loop
from scheduler import tasks

pytestmark = pytest.mark.django_db


class Seen:
    """What was run, by which thread."""

    def __init__(self) -> None:
        self.cycles: list[str] = []
        self.watches = 0
        self.faults = 0
        self.at = 0.0

    def cycle(self) -> None:
        self.cycles.append(threading.current_thread().name)
        self.at = time.time()
        if self.faults:
            self.faults -= 1
            raise RuntimeError("the database went away")

    def watch(self) -> None:
        self.watches += 1


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end and not holds():
        time.sleep(0.01)
    return holds()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen()
    monkeypatch.setattr(loop, "cycle", found.cycle)
    monkeypatch.setattr(loop, "last_cycle_at", lambda: found.at)
    monkeypatch.setattr(watch, "watch", found.watch)
    monkeypatch.setattr(tasks, "POLL_S", 0.2)
    yield found
    tasks._end()
    if tasks._clockwork is not None:
        tasks._clockwork.join()
    tasks._stopping.clear()
    tasks._wanted.clear()
    tasks._clockwork = None


def worker(*queues: str) -> SimpleNamespace:
    return SimpleNamespace(task_consumer=SimpleNamespace(queues=[SimpleNamespace(name=name) for name in queues]))


def test_a_task_wakes_the_clockwork(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "POLL_S", 3600.0)
    tasks._begin(worker("cycle", "slow"))
    for count in (1, 2):
        tasks.cycle()
        assert eventually(lambda wanted=count: len(seen.cycles) == wanted)  # type: ignore[misc]
    assert set(seen.cycles) == {"clockwork"}
    assert seen.watches == 0


def test_without_any_task_it_looks_by_itself_and_survives_a_fault(seen: Seen) -> None:
    seen.faults = 1
    tasks._begin(worker("cycle"))
    assert eventually(lambda: len(seen.cycles) >= 3)
    assert eventually(lambda: seen.watches >= 2)


def test_a_worker_without_the_clockwork_runs_the_cycle_itself(seen: Seen) -> None:
    tasks._begin(worker("slow"))
    assert tasks._clockwork is None
    tasks.cycle()
    assert seen.cycles == [threading.current_thread().name]
