"""Arrays: one file, many jobs; how many of them run at once, what each is told, and what is done with all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.jobs import arrays, dependencies, service
from controlplane.jobs.models import Array, Job, Stage
from controlplane.jobs.spec import InvalidSpec
from controlplane.pools import profiles
from controlplane.retention import kinds
from controlplane.scheduling.apply import apply_plan
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.model.lifecycle import ACTIVE, IllegalTransition
from scheduler.core.model.types import Plan, Snapshot
from scheduler.core.planning import engine
from scheduler.core.ports import Applied
from tests.record.yard import Agent, Yard, cpu, stage, states


def submitted(yard: Yard, array: dict[str, Any], **spec: Any) -> tuple[Array, list[Job]]:
    """An array and its elements in order."""
    (row,) = service.submit_many([{"name": "sweep", "run": "true", "array": array, **spec}], yard.user)
    assert isinstance(row, Array)
    return row, list(row.jobs.order_by("array_index"))


def active(row: Array) -> list[int | None]:
    """The indexes of the elements that run."""
    stages = Stage.objects.filter(job__array=row, state__in=ACTIVE)
    return sorted(stages.values_list("job__array_index", flat=True).distinct())


def environments(agent: Agent) -> list[dict[str, str]]:
    """What of arrays the stages that are ordered find in their environment."""
    return [
        {name: value for name, value in wanted.spec.env.items() if name.startswith("YARD_")}
        for wanted in agent.look()
        if wanted.spec is not None
    ]


def test_each_element_is_a_job_and_knows_its_place(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    row, jobs = submitted(yard, {"indexes": "0-4:2,7"})
    assert [(job.number - row.number, job.array_index, job.parameters) for job in jobs] == [
        (1, 0, None), (2, 2, None), (3, 4, None), (4, 7, None),
    ]  # fmt: skip
    yard.cycle()
    assert environments(agent)[0].keys() == {"YARD_ARRAY_JOB", "YARD_ARRAY_INDEX", "YARD_ARRAY_COUNT"}
    assert sorted(env["YARD_ARRAY_INDEX"] for env in environments(agent)) == ["0", "2", "4", "7"]
    assert {(env["YARD_ARRAY_JOB"], env["YARD_ARRAY_COUNT"]) for env in environments(agent)} == {(str(row.number), "4")}


def test_the_points_of_a_sweep_are_in_the_environment(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    _row, jobs = submitted(yard, {"parameters": {"lr": [0.0001, 0.01], "Deep": [True]}}, env={"A": "1"})
    assert [job.parameters for job in jobs] == [{"lr": 0.0001, "Deep": True}, {"lr": 0.01, "Deep": True}]
    yard.cycle()
    first = next(env for env in environments(agent) if env["YARD_ARRAY_INDEX"] == "0")
    assert (first["YARD_PARAM_LR"], first["YARD_PARAM_DEEP"]) == ("0.0001", "true")


def test_no_more_run_at_once_than_the_file_says(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    row, jobs = submitted(yard, {"indexes": "0-4", "max_parallel": 2})
    yard.cycle()
    assert active(row) == [0, 1]
    reason = stage(jobs[2]).reasons[0]
    assert (reason["code"], reason["params"]) == ("ArrayLimit", {"array": row.number, "limit": 2})
    agent.start()
    agent.end(stage(jobs[0]))
    # A held element lets the next one pass.
    service.hold(jobs[2], "ada")
    yard.cycle()
    assert active(row) == [1, 3]
    agent.start()
    agent.end(stage(jobs[1]), code=3)
    service.release(jobs[2], "ada")
    yard.cycle()
    assert active(row) == [2, 3]
    assert yard.cycle().applied == Applied()


def test_an_element_that_waits_for_its_next_try_keeps_nobody_waiting(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    row, jobs = submitted(
        yard, {"indexes": "0-2", "max_parallel": 1}, retry={"max": 3, "on": ["exit_code"], "backoff": 60}
    )
    yard.cycle()
    agent.start()
    agent.end(stage(jobs[0]), code=3)
    yard.cycle()
    assert active(row) == [1]
    agent.start()
    agent.end(stage(jobs[1]))
    retry_at = stage(jobs[0]).retry_at
    assert retry_at is not None
    yard.cycle(retry_at.timestamp() + 1)
    assert active(row) == [0]


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_once_stay_within_the_limit(yard: Yard) -> None:
    """Their plans name different elements, and both are applied at the same time."""
    yard.agent("a", cpu("a", cores=8))
    row, jobs = submitted(yard, {"indexes": "0-3", "max_parallel": 1})
    now = clock()
    service.hold(jobs[0], "ada")
    plans = [planned(now)]
    service.release(jobs[0], "ada")
    plans.append(planned(now))
    assert len({plan.starts[0].stage for _snapshot, plan in plans}) == 2
    done: list[Applied] = []

    def apply_too() -> None:
        try:
            done.append(apply_plan(*plans[1], now))
        finally:
            connection.close()

    with transaction.atomic():
        done.append(apply_plan(*plans[0], now))
        other = threading.Thread(target=apply_too)
        other.start()
        while not _waits():
            assert other.is_alive()
    other.join()
    assert [len(each.started) for each in done] == [1, 0]
    assert active(row) == [1]


def planned(now: float) -> tuple[Snapshot, Plan]:
    """A snapshot of now, and what a scheduler of its own decides on it."""
    snapshot = LiveStore().load(now)
    return snapshot, engine.plan(snapshot, profiles.of(snapshot.pools), now)


def test_all_elements_are_cancelled_held_and_released(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=2))
    row, jobs = submitted(yard, {"indexes": "0-5"})
    yard.cycle()
    agent.start()
    assert arrays.states(row) == {"PENDING": 4, "RUNNING": 2}
    arrays.hold(row, "ada")
    assert arrays.states(row) == {"HELD": 4, "RUNNING": 2}
    with pytest.raises(IllegalTransition):
        arrays.hold(row, "ada")
    arrays.release(row, "ada")
    arrays.cancel(row, "ada", "enough")
    assert arrays.states(row) == {"CANCELLED": 4, "STOPPING": 2}
    assert stage(jobs[5]).detail == "enough"
    arrays.cancel(row, "ada")
    assert arrays.states(row) == {"CANCELLED": 4, "STOPPING": 2}


def test_elements_wait_for_the_same_elements_of_another_array(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a", cores=8))
    first, befores = submitted(yard, {"indexes": "0-2"})
    after = [{"job": first.number, "when": "aftercorr"}]
    _second, elements = submitted(yard, {"indexes": "0-1"}, depends_on=after)
    whole = yard.submit(depends_on=[{"job": first.number}])
    one = yard.submit(depends_on=[{"job": f"{first.number}_2", "when": "afternotok"}])
    yard.cycle()
    agent.start()
    assert stage(elements[1]).reasons[0]["params"] == {"jobs": f"#{first.number}_1 (aftercorr)"}
    agent.end(stage(befores[1]))
    agent.end(stage(befores[0]), code=3)
    dependencies.settle()
    assert [states(job)["job"] for job in (*elements, whole, one)] == ["CANCELLED", "PENDING", "CANCELLED", "PENDING"]
    assert stage(elements[1]).eligible_at is not None
    agent.end(stage(befores[2]))
    dependencies.settle()
    assert states(one)["job"] == "CANCELLED"
    with pytest.raises(InvalidSpec, match="no elements 3"):
        submitted(yard, {"indexes": "0-3"}, depends_on=after)
    with pytest.raises(InvalidSpec, match="elements of two arrays"):
        yard.submit(depends_on=after)


def test_an_array_goes_with_its_last_element(yard: Yard) -> None:
    yard.agent("a")
    row, jobs = submitted(yard, {"indexes": "0-1"})
    arrays.cancel(row, "ada")
    remove = kinds.NAMED["jobs"].remove
    remove([jobs[0].pk])
    with pytest.raises(InvalidSpec, match="were removed"):
        yard.submit(depends_on=[{"job": row.number}])
    assert Array.objects.filter(number=row.number).exists()
    remove([jobs[1].pk])
    assert not Array.objects.filter(number=row.number).exists()


def _waits() -> bool:
    """Whether another connection waits for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])
