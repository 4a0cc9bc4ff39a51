"""Jobs that wait for the end of others: what each kind waits for, and that no end is missed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.jobs import dependencies, service
from controlplane.jobs.models import Dependency, Job
from controlplane.jobs.spec import InvalidSpec
from controlplane.retention import kinds
from tests.record.yard import Agent, Yard, stage, states


def waiting(yard: Yard, *depends_on: dict[str, Any], **spec: Any) -> Job:
    """A job that depends on these."""
    return yard.submit(depends_on=list(depends_on), **spec)


def ended(yard: Yard, agent: Agent, job: Job, code: int = 0) -> None:
    """Runs a job to its end."""
    yard.cycle()
    agent.start()
    agent.end(stage(job), code=code)


def test_a_job_waits_for_the_success_of_another(yard: Yard) -> None:
    agent = yard.agent("a")
    first = yard.submit()
    then = waiting(
        yard, {"job": first.number}, stages=[{"name": "a", "run": "x"}, {"name": "b", "run": "x", "needs": ["a"]}]
    )
    yard.cycle()
    assert agent.start() == ["main"]
    reason = stage(then, "a").reasons[0]
    assert (reason["code"], reason["params"]) == ("JobDependency", {"jobs": f"#{first.number} (afterok)"})
    agent.end(stage(first))
    yard.cycle()
    assert agent.start() == ["a"]
    assert stage(then, "b").reasons[0]["code"] == "DependencyPending"
    assert [e.kind for e in then.events.all()][:2] == ["submitted", "eligible"]
    assert then.dependencies.get().verdict == "met"


@pytest.mark.parametrize(
    ("when", "code", "after"),
    [
        ("afterok", 0, "PENDING"), ("afterok", 3, "CANCELLED"), ("afterany", 0, "PENDING"), ("afterany", 3, "PENDING"),
        ("afternotok", 0, "CANCELLED"), ("afternotok", 3, "PENDING"),
    ],
)  # fmt: skip
def test_what_can_never_be_cancels_with_the_reason(yard: Yard, when: str, code: int, after: str) -> None:
    agent = yard.agent("a")
    first = yard.submit()
    then = waiting(yard, {"job": first.number, "when": when})
    last = waiting(yard, {"job": then.number})
    ended(yard, agent, first, code)
    dependencies.settle()
    assert states(then)["main"] == after
    if after == "CANCELLED":
        # In one go, also for those that wait for the cancelled one.
        assert states(last)["job"] == "CANCELLED"
        then.refresh_from_db()
        assert (then.cause, stage(then).cause) == ("DEPENDENCY", "DEPENDENCY")
        (said,) = stage(then).said
        assert said["code"] == ("NeverOk" if code else "NeverNotOk")
        assert said["params"]["other"] == f"#{first.number}"
    else:
        assert stage(then).eligible_at is not None


def test_all_dependencies_must_be_met(yard: Yard) -> None:
    agent = yard.agent("a")
    one, two = yard.submit(), yard.submit(hold=True)
    then = waiting(yard, {"job": one.number}, {"job": str(two.number), "when": "afterany"})
    ended(yard, agent, one)
    yard.cycle()
    assert stage(then).reasons[0]["params"] == {"jobs": f"#{two.number} (afterany)"}
    service.cancel(two, "ada")
    yard.cycle()
    assert agent.start() == ["main"]
    assert states(then)["job"] == "RUNNING"


def test_a_singleton_waits_for_its_earlier_namesakes_only(yard: Yard) -> None:
    yard.agent("a")
    first, other = yard.submit(name="nightly", hold=True), yard.submit(name="else", hold=True)
    then = waiting(yard, {"when": "singleton"}, name="nightly")
    later = waiting(yard, {"when": "singleton"}, name="nightly")
    yard.cycle()
    reason = stage(then).reasons[0]
    assert (reason["code"], reason["params"]) == ("NamesakePending", {"user": "ada", "name": "nightly"})
    service.cancel(first, "ada")
    yard.cycle()
    assert (states(then)["job"], states(later)["job"]) == ("RUNNING", "PENDING")
    assert states(other)["job"] == "HELD"


def test_what_is_not_there_or_not_for_ones_eyes_is_not_found(yard: Yard) -> None:
    with pytest.raises(InvalidSpec) as refused:
        waiting(
            yard, {"job": 77}, {"job": "x"}, {"job": 1, "when": "later"}, {"when": "singleton", "job": 1}, {"what": 1}
        )
    assert [(one.pointer, one.code) for one in refused.value.errors] == [
        ("/depends_on/0/job", "unknown_job"),
        ("/depends_on/1/job", "invalid"),
        ("/depends_on/2/when", "unknown_value"),
        ("/depends_on/2/job", "unknown_job"),
        ("/depends_on/3/job", "exclusive"),
        ("/depends_on/4/what", "unknown_key"),
        ("/depends_on/4/job", "missing"),
    ]


def test_one_that_ended_long_ago_counts_and_one_that_was_removed_is_refused(yard: Yard) -> None:
    agent = yard.agent("a")
    first = yard.submit()
    ended(yard, agent, first)
    then = waiting(yard, {"job": first.number})
    # Retention leaves alone what somebody waits for, until that has been decided.
    jobs = kinds.NAMED["jobs"]
    assert first not in jobs.rows(yard.project)
    yard.cycle()
    assert states(then)["job"] == "RUNNING"
    jobs.remove([row.pk for row in jobs.rows(yard.project)])
    assert not Job.objects.filter(number=first.number).exists()
    assert Dependency.objects.get().name == str(first.number)
    with pytest.raises(InvalidSpec, match="no job"):
        waiting(yard, {"job": first.number})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ends_first", [True, False])
def test_an_end_and_a_submission_at_the_same_moment_miss_each_other_never(yard: Yard, ends_first: bool) -> None:
    """Both transactions are open at the same time, and either commits first."""
    agent = yard.agent("a")
    first = yard.submit()
    yard.cycle()
    agent.start()
    done: list[Job] = []

    def submit() -> None:
        try:
            done.append(waiting(yard, {"job": first.number}))
        finally:
            connection.close()

    if ends_first:
        with transaction.atomic():
            agent.end(stage(first))
            dependencies.settle()
            other = threading.Thread(target=submit)
            other.start()
            # The submission waits for the row of the job that ends here.
            while not _waits():
                assert other.is_alive()
        other.join()
    else:
        with transaction.atomic():
            done.append(waiting(yard, {"job": first.number}))
            other = threading.Thread(
                target=lambda: (agent.end(stage(first)), dependencies.settle(), connection.close())
            )
            other.start()
            while not _waits():
                assert other.is_alive()
        other.join()
    yard.cycle()
    (then,) = done
    assert states(then)["job"] == "RUNNING"
    assert Dependency.objects.get().verdict == "met"


def _waits() -> bool:
    """Whether another connection waits for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])
