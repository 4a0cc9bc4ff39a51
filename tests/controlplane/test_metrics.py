"""``/metrics``: who may read it, that it says what is true, and that counters only rise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from controlplane import counted
from controlplane.accounts.models import Project, User
from controlplane.jobs.models import Attempt, Curves, Job, Stage
from controlplane.observability import exposition, gathering, tallies
from controlplane.observability.catalogue import BY_NAME, METRICS
from controlplane.observability.models import Tally
from controlplane.pools.models import Budget, Pool, Quota
from controlplane.providers.models import NodeProvider, Pilot
from tests.controlplane.people import Person, Town
from tests.record.yard import stage

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def own_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of other tests in Redis, and nothing kept for the next scrape."""
    monkeypatch.setattr(counted, "KEY", "test:counted")
    monkeypatch.setattr(counted, "SOCKETS", "test:sockets")
    monkeypatch.setattr(exposition, "KEPT_S", 0)
    yield
    with counted.connect() as redis:
        redis.delete("test:counted", "test:counted:sum", "test:sockets")


def scrape(person: Person, accept: str = "application/openmetrics-text") -> Series:
    """The series of a scrape, read by Prometheus' own parser of the format."""
    answer = person.client.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200, answer.content
    read = openmetrics if answer["Content-Type"].startswith("application/openmetrics-text") else prometheus
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read(answer.content.decode())
        for sample in family.samples
    }


def value(series: Series, name: str, /, **labels: str) -> float | None:
    """The one value of this name with these labels among others."""
    found = [v for (n, its), v in series.items() if n == name and labels.items() <= dict(its).items()]
    assert len(found) < 2, found
    return found[0] if found else None


def ended(town: Town, agent: Any, job: Job, code: int = 0, **fields: Any) -> None:
    town.cycle()
    agent.start()
    agent.end(stage(job), code, **fields)


# -- who may read


def test_only_who_may_see_metrics_reads_them(town: Town) -> None:
    watcher = User.objects.create(username="prometheus")
    group = Group.objects.create(name="monitoring")
    group.permissions.add(Permission.objects.get(content_type__app_label="observability", codename="view_tally"))
    watcher.groups.add(group)
    people = {
        401: [town.anonymous],
        403: [town.owner, town.lead, town.stranger, Person(town.user, "submit")],
        200: [town.staff, Person(watcher), Person(watcher, "read")],
    }
    for status, some in people.items():
        for person in some:
            answer = person.client.get("/metrics")
            assert answer.status_code == status, (person.user, answer.content)
            if status != 200:
                assert answer["Content-Type"] == "application/problem+json"
                assert b"switchyard_" not in answer.content
    forged = Client(headers={"authorization": "Bearer yard_made-up"}).get("/metrics")
    assert forged.status_code == 401
    assert town.staff.client.post("/metrics").status_code == 405
    assert town.staff.client.head("/metrics").content == b""


@pytest.mark.parametrize(
    ("address", "status"),
    [("10.1.2.3", 200), ("::ffff:10.1.2.3", 200), ("fd00::7", 200), ("10.2.0.1", 401), ("fd01::7", 401), ("", 401)],
)
def test_a_network_that_is_named_needs_no_token(town: Town, settings: Any, address: str, status: int) -> None:
    from ipaddress import ip_network

    settings.METRICS_NETWORKS = (ip_network("10.1.2.0/24"), ip_network("fd00::/64"))
    said = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3"}
    assert Client(REMOTE_ADDR=address).get("/metrics", headers=said).status_code == status


# -- what is told


def test_what_jobs_do_is_counted_and_told_in_both_formats(town: Town) -> None:
    agent = town.machine()
    ended(town, agent, town.job())
    ended(town, agent, town.job(), 3)
    town.owner.post(f"/jobs/{town.job().number}/cancel")
    again = town.job(retry={"max": 2})
    ended(town, agent, again, stopped=True, cause="NODE_FAIL", code=1)
    for accept in ("application/openmetrics-text;version=1.0.0", "text/plain"):
        now = scrape(town.staff, accept)
        common = {"pool": "default", "project": "default"}
        assert value(now, "switchyard_jobs_submitted_total", **common) == 4
        for result in ("completed", "failed", "cancelled"):
            assert value(now, "switchyard_jobs_finished_total", result=result, **common) == 1
        assert value(now, "switchyard_jobs", state="PENDING", **common) == 1
        assert value(now, "switchyard_jobs_requeued_total", pool="default", cause="node_fail") == 1
        assert value(now, "switchyard_attempts_finished_total", pool="default", cause="exit_code") == 1
        assert value(now, "switchyard_attempts_finished_total", pool="default", cause="completed") == 1
        assert value(now, "switchyard_scheduler_queue_depth", pool="default") == 1
        assert (value(now, "switchyard_device_seconds_total", project="default", kind="cpu") or 0) > 0
        started = value(now, "switchyard_job_wait_seconds_count", pool="default")
        assert started == value(now, "switchyard_job_wait_seconds_bucket", pool="default", le="+Inf") == 3
        assert {name for name, _ in now} <= {series for metric in METRICS for series in metric.series}


def test_who_was_stopped_for_others_is_counted_with_what_was_lost(town: Town) -> None:

    agent = town.machine()
    job = town.running(agent, devices={"kind": "gpu", "count": 2})
    Attempt.objects.update(stop_why="PREEMPTED")
    agent.end(stage(job), stopped=True)
    now = scrape(town.staff)
    price = Attempt.objects.get(cause="PREEMPTED").price
    assert price
    assert value(now, "switchyard_jobs_preempted_total", pool="default", reason="preempted") == 1
    assert value(now, "switchyard_lost_device_seconds_total", pool="default", cause="preempted") == price


def test_quotas_devices_and_running_stages_are_told(town: Town) -> None:
    agent = town.machine()
    hostile = 'it says "\\n" and {more}\nswitchyard_jobs 7'
    job = town.running(agent, devices={"kind": "gpu", "count": 2}, name="plain")
    Job.objects.filter(id=job.id).update(name=hostile)
    Quota.objects.create(project=town.project, kind="gpu", nominal=1.0)
    Quota.objects.create(project=Project.objects.get(name="other"), kind="gpu")
    lender = Project.objects.create(name="lender")
    Quota.objects.create(project=lender, kind="gpu", nominal=4.0)
    Budget.objects.create(project=lender, kind="gpu", hours=10, used_hours=2.5)
    now = scrape(town.staff)
    held = {"project": "default", "kind": "gpu"}
    assert (value(now, "switchyard_quota_nominal", **held), value(now, "switchyard_quota_used", **held)) == (1, 2)
    assert value(now, "switchyard_quota_borrowed", **held) == 1
    assert value(now, "switchyard_quota_nominal", project="other") is None, "unlimited has no number"
    assert (value(now, "switchyard_quota_lent", project="lender"), value(now, "switchyard_quota_lent", **held)) == (
        1,
        0,
    )
    budget = {"project": "lender", "kind": "gpu", "period": "month", "at_end": "notify"}
    assert value(now, "switchyard_budget_device_seconds", **budget) == 36_000
    assert value(now, "switchyard_budget_used_device_seconds", **budget) == 9_000
    assert value(now, "switchyard_project_devices_held", pool="default", **held) == 2
    assert value(now, "switchyard_device_allocated", uuid="GPU-n1-0", node="n1", pool="default", vendor="NVIDIA") == 1
    assert value(now, "switchyard_device_utilization_ratio", uuid="GPU-n1-0") is None, "never measured"
    assert value(now, "switchyard_largest_gang_devices", kind="gpu") == 0
    assert value(now, "switchyard_node_state", node="n1", state="READY") == 1
    assert value(now, "switchyard_job_info", number=str(job.number), name=hostile) == 1


def test_the_speed_of_a_running_stage_is_told_where_it_reports_it(town: Town) -> None:
    job = town.running(town.machine(), devices={"kind": "gpu"})
    number, now = str(job.number), timezone.now().timestamp()
    told = scrape(town.staff)
    assert value(told, "switchyard_job_step_seconds", number=number) is None
    assert value(told, "switchyard_job_tokens_per_second", number=number) is None
    Stage.objects.filter(job=job).update(values={"tokens_per_s": 41_600.5, "loss": "nan"})
    marks = [[now - 60 + 10 * n, 4 * n] for n in range(7)]
    Curves.objects.create(attempt=Attempt.objects.get(stage__job=job), marks=marks)
    told = scrape(town.staff)
    assert value(told, "switchyard_job_tokens_per_second", number=number) == 41_600.5
    assert value(told, "switchyard_job_step_seconds", number=number) == pytest.approx(2.5)
    Stage.objects.filter(job=job).update(values={"tokens_per_s": "fast"})
    assert value(scrape(town.staff), "switchyard_job_tokens_per_second", number=number) is None


def test_free_devices_beside_held_ones_are_fragments(town: Town) -> None:
    town.machine("n1"), town.machine("n2")
    assert value(scrape(town.staff), "switchyard_fragmentation_ratio", kind="gpu") == 0
    town.job(devices={"kind": "gpu"})
    town.cycle()
    now = scrape(town.staff)
    assert value(now, "switchyard_fragmentation_ratio", kind="gpu") == pytest.approx(1 / 3)
    assert value(now, "switchyard_largest_gang_devices", kind="gpu") == 2


def test_pilots_are_told_by_provider_and_state(town: Town) -> None:
    pool = Pool.objects.get(name="default")
    lab = NodeProvider.objects.create(name="lab", kind="slurm", pool=pool, failures=3)
    for number, state in enumerate(["UP", "UP", "QUEUED", "GONE"]):
        Pilot.objects.create(
            provider=lab, shape="s", hours=1, label=str(number), state=state, created_at=timezone.now()
        )
    now = scrape(town.staff)
    told = {state: value(now, "switchyard_provider_pilots", provider="lab", state=state) for state in Pilot.PilotState}
    assert told == {"ASKED": 0, "QUEUED": 1, "UP": 2, "LEAVING": 0, "GONE": None}
    assert value(now, "switchyard_provider_failures", provider="lab") == 3


# -- counters


def test_counters_outlive_the_rows_that_they_count(town: Town) -> None:
    agent = town.machine()
    ended(town, agent, town.job())
    before = scrape(town.staff)
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM jobs_claim; DELETE FROM jobs_part; DELETE FROM jobs_attempt; DELETE FROM jobs_event"
        )
    Job.objects.all().delete()
    tallies.fold()
    after = scrape(town.staff)
    counters = {name for name in BY_NAME if BY_NAME[name].kind == "counter"}
    assert {key: v for key, v in before.items() if key[0] in counters} == {
        key: v for key, v in after.items() if key[0] in counters
    }


@pytest.mark.django_db(transaction=True)
def test_nobody_sees_a_counter_fall_while_it_is_counted_and_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "WORTH_IT", 1)
    stop, seen, faults = threading.Event(), [0], []

    def work(what: Any) -> None:
        try:
            while not stop.is_set():
                what()
        except Exception as error:  # noqa: BLE001  it is told below
            faults.append(error)
        finally:
            connection.close()

    def look() -> None:
        count = sum(total.count for total in tallies.totals())
        assert count >= seen[0], (count, seen[0])
        seen[0] = count

    threads = [threading.Thread(target=work, args=(one,)) for one in (tallies.fold, tallies.fold, look)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            Tally.objects.create(series="submitted", count=1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == []
    tallies.fold()
    assert [(total.count, Tally.objects.count()) for total in tallies.totals()] == [(200, 1)]


def test_buckets_are_numbered_as_the_bounds_are_told(db: None) -> None:
    @given(st.sampled_from([tallies.WAIT_BOUNDS, tallies.START_ERROR_BOUNDS]), st.floats(0, 1e6))
    def law(bounds: tuple[int, ...], waited: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT yard_tally_bucket(%s, %s::float8[])", [waited, [float(one) for one in bounds]])
            bucket = cursor.fetchone()[0]
        assert all((waited <= bound) is (bucket <= place) for place, bound in enumerate(bounds))

    law()
    with connection.cursor() as cursor:
        cursor.execute("SELECT prosrc FROM pg_proc WHERE proname = 'yard_tally_started'")
        source = cursor.fetchone()[0]
    for bounds in (tallies.WAIT_BOUNDS, tallies.START_ERROR_BOUNDS):
        assert "{" + ",".join(map(str, bounds)) + "}" in source, "the triggers have these bounds"


# -- what a scrape costs


def test_statements_do_not_grow_with_rows(town: Town) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as found:
            exposition.gather()
        return len(found)

    agent = town.machine()
    town.running(agent)
    statements()  # which devices are held idle is kept for a while
    few = statements()
    for number in range(5):
        town.machine(f"m{number}")
        Quota.objects.create(project=Project.objects.create(name=f"p{number}"), kind="gpu", nominal=1)
        town.job()
    town.cycle()
    assert statements() == few < 20


def test_a_metric_has_so_many_series_and_tells_how_many_more_there_are(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scrape(town.staff)
    monkeypatch.setattr(gathering, "MOST", 20)
    for number in range(22):
        Project.objects.create(name=f"later{number}")
    now = scrape(town.staff)
    shown = {dict(labels)["project"] for name, labels in now if name == "switchyard_project_weight"}
    assert shown == {"default", "other", *(f"later{n}" for n in range(18))}, "those that were there first stay"
    assert value(now, "switchyard_metric_series_left_out", metric="switchyard_project_weight") == 4
    assert value(before, "switchyard_metric_series_left_out", metric="switchyard_project_weight") is None


def test_one_text_serves_all_servers_for_a_moment(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    monkeypatch.setattr(exposition, "KEPT_S", 60)
    first = exposition.text(openmetrics=True)
    town.job()
    assert exposition.text(openmetrics=True) == first
    assert exposition.text(openmetrics=False) != first


def test_without_redis_what_the_database_says_is_told(
    town: Town, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.machine()
    from django.core.cache.backends.redis import RedisCache

    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    monkeypatch.setattr(exposition, "cache", RedisCache(settings.REDIS_URL, {}))
    town.job()
    now = scrape(town.staff)
    assert value(now, "switchyard_redis_up") == 0
    assert value(now, "switchyard_jobs_submitted_total", pool="default", project="default") == 1
    assert value(now, "switchyard_celery_queue_messages", queue="fleet") is None


# -- what processes count


def test_processes_count_together_and_what_cannot_be_sent_is_kept(
    servers: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = counted.Counter(), counted.Counter()
    monkeypatch.setattr(counted.Counter, "_begin", lambda self: None)
    one.observe("cycle", (), 0.25, (0.25, 1.0))
    other.observe("cycle", (), 0.5, (0.25, 1.0))
    other.observe("cycle", (), 2.0, (0.25, 1.0))
    good, settings.REDIS_URL = settings.REDIS_URL, "unix:///nowhere/valkey.sock"
    other.send()
    settings.REDIS_URL = good
    for each in (one, other, one, other):
        each.send()
    with counted.connect() as redis:
        found = counted.sums(redis)
    assert {sort[1]: (each.count, each.amount) for sort, each in found.items()} == {
        "0": (1, 0.25),
        "1": (1, 0.5),
        "2": (1, 2.0),
    }


def test_sockets_are_those_of_servers_that_live(servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted.Counter, "_begin", lambda self: None)
    one = counted.Counter()
    one.socket_opened(), one.socket_opened(), one.socket_closed()
    one.send()
    with counted.connect() as redis:
        redis.sadd("test:sockets", "a-server-that-died")
        assert counted.open_sockets(redis) == 1
        assert len(redis.smembers("test:sockets")) == 1
        one.socket_closed()
        one.send()
        assert counted.open_sockets(redis) == 0


def test_a_route_is_a_pattern_of_the_code(town: Town) -> None:
    from django.test import RequestFactory
    from django.urls import resolve

    from controlplane.request_handler import route_of

    def route(path: str) -> str:
        request = RequestFactory().get(path)
        try:
            request.resolver_match = resolve(path)
        except Exception:  # noqa: BLE001  there is no such address
            request.resolver_match = None
        return route_of(request)

    assert route("/api/v1/jobs/12/logs") == route("/api/v1/jobs/99/logs") == "/api/v1/jobs/{name}/logs"
    assert route("/healthz") == "/healthz"
    assert route("/nodes/a") == route("/nodes/b")
    assert route("/admin/access/user/") == route("/admin/jobs/job/") == "/admin/"
    assert route("/what/" + "x" * 500) == "unmatched"
    assert route("/static/x.js") == "/static/"
