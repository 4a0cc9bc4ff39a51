"""The database poll: it does what no message asked for within its time, and a fault ends it not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import OperationalError, connection

from controlplane.fleet.models import TaskRecord
from controlplane.operations.database_poll import DatabasePoll

EVERY_S = 0.2


class Duty:
    """What was done, by which thread."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.faults = 0
        self.at = float("-inf")

    def do(self) -> None:
        if self.faults:
            self.faults -= 1
            raise OperationalError("the database went away")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        self.threads.append(threading.current_thread().name)
        self.at = time.monotonic()

    def last_at(self) -> float:
        return self.at


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end and not holds():
        time.sleep(0.01)
    return holds()


@pytest.fixture
def cycle() -> Duty:
    return Duty()


@pytest.fixture
def watch() -> Duty:
    return Duty()


@pytest.fixture
def poll(transactional_db: None, cycle: Duty, watch: Duty) -> Iterator[DatabasePoll]:
    duties = {"scheduling.cycle": (cycle.do, cycle.last_at), "fleet.watch": (watch.do, watch.last_at)}
    poll = DatabasePoll(duties, EVERY_S)
    yield poll
    poll.stop()


def test_without_any_message_it_does_all_and_survives_a_fault(poll: DatabasePoll, cycle: Duty, watch: Duty) -> None:
    cycle.faults = 1
    poll.start()
    assert eventually(lambda: len(cycle.threads) >= 2 and len(watch.threads) >= 3)
    assert set(cycle.threads) == {"database poll"}
    record = TaskRecord.objects.get(name="scheduling.cycle")
    assert (record.failures, record.error) == (1, "OperationalError: the database went away")
    assert record.done_at is not None


def test_while_messages_come_it_does_nothing(transactional_db: None, cycle: Duty, watch: Duty) -> None:
    duties = {"scheduling.cycle": (cycle.do, time.monotonic), "fleet.watch": (watch.do, watch.last_at)}
    poll = DatabasePoll(duties, EVERY_S)
    poll.start()
    try:
        assert eventually(lambda: len(watch.threads) >= 3), "what no message asks for is done all the same"
        assert cycle.threads == []
    finally:
        poll.stop()
