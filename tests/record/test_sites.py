"""Jobs leave for a site, run there once, and are as if they had run here; whatever is lost or answered in between.

The site is scripted (tests/record/scripted_site.py); tests/chaos/test_sites.py has two real control planes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils import timezone

from controlplane.clauses import clause
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Node
from controlplane.jobs import logs, record, service
from controlplane.jobs.models import Attempt, Bundle, Job, Part
from controlplane.jobs.spec import InvalidSpec
from controlplane.sites import exchange, spill
from controlplane.sites import service as writer
from controlplane.sites.models import Site, SiteJob
from tests.record.scripted_site import TOKEN, ScriptedSite, SiteServer
from tests.record.yard import Yard, cpu, gpu, stage, states

GPU = {"devices": {"kind": "gpu"}}


@pytest.fixture
def berlin(settings: Any) -> Iterator[ScriptedSite]:
    settings.SITE_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    spill._asked_at.clear()
    site = ScriptedSite()
    server = SiteServer(site)
    yield site
    server.stop()


@pytest.fixture
def there(yard: Yard, berlin: ScriptedSite) -> Site:
    """The site's row: jobs leave at once."""
    row = Site.objects.create(name="berlin", url=berlin.url, patience_s=0, gain_s=0, project="guests", pools=["gpus"])
    writer.stand_in(row)
    writer.set_token(row, TOKEN, "ada")
    return row


def look() -> None:
    """Let the duty look now, also where it would wait before it asks again."""
    Site.objects.update(retry_at=None)
    spill._asked_at.clear()
    exchange.look()


def left(yard: Yard, **more: Any) -> Job:
    """A job for which there is no device here, and that has left."""
    job = yard.submit(**{**GPU, "sites": ["berlin"], **more})
    yard.cycle()
    look()
    return job


def row_of(job: Job) -> SiteJob:
    return SiteJob.objects.get(part__attempt__stage__job=job)


def text_of(job: Job, stream: str = "out") -> bytes:
    return logs.read(Part.objects.get(attempt__stage__job=job), stream, 0, 10**6)


def test_a_job_that_cannot_run_here_runs_there_and_its_log_is_read_here(yard: Yard, berlin, there) -> None:
    job = left(yard, labels={"team": "x"})
    assert states(job) == {"job": "RUNNING", "main": "STARTING"}
    assert (row_of(job).site, row_of(job).number) == (there, None)
    look()
    (file,) = berlin.submitted
    assert (file["project"], file["pool"], file["run"], file["devices"]) == ("guests", "gpus", "true", GPU["devices"])
    assert file["labels"]["team"] == "x"
    assert not {"sites", "retry", "priority"} & file.keys()
    assert (row_of(job).state, row_of(job).reason) == ("PENDING", "no device is free")
    berlin.run(berlin.number)
    berlin.write(berlin.number, "out", b"one\n")
    look()
    assert states(job)["main"] == "RUNNING"
    assert text_of(job) == b"one\n"
    berlin.write(berlin.number, "out", b"two\n")
    berlin.write(berlin.number, "err", b"warned\n")
    berlin.end(berlin.number, "COMPLETED", 0)
    look()
    assert states(job) == {"job": "COMPLETED", "main": "COMPLETED"}
    assert (text_of(job), text_of(job, "err")) == (b"one\ntwo\n", b"warned\n")
    assert row_of(job).over_at is not None
    before = len(berlin.asked)
    look()
    assert not [one for one in berlin.asked[before:] if "jobs" in one[1]], "nothing more is asked of it"
    yard.cycle()


def test_its_code_is_there_before_it_and_is_sent_once(yard: Yard, berlin, there) -> None:
    content = b"\x1f\x8b" + b"code" * 100_000
    digest = sha256(content).hexdigest()
    storages["bundles"].save(Bundle.place(digest), ContentFile(content))
    Bundle.objects.create(sha256=digest, size_bytes=len(content))
    for _job in range(2):
        left(yard, bundle=digest)
    look()
    assert berlin.bundles == {digest: content}
    assert [file["bundle"] for file in berlin.submitted] == [digest, digest]
    assert berlin.asked.count(("POST", "/bundles")) == 1


def test_a_site_tells_what_it_has(yard: Yard, berlin, there) -> None:
    look()
    there.refresh_from_db()
    assert there.capacity == {"devices": [{"kind": "gpu", "model": "H100", "count": 8, "free": 5}], "waiting": 3}
    assert (there.condition, there.answered_at is not None) == ("", True)
    node = Node.objects.get(name="site-berlin")
    assert (node.is_site, node.state, list(node.pools.all()), list(node.devices.all())) == (True, "READY", [], [])


def test_a_lost_answer_is_adopted_and_the_job_is_there_once(yard: Yard, berlin, there) -> None:
    job = left(yard)
    berlin.loses_answers = True
    look()
    assert (len(berlin.submitted), row_of(job).number, row_of(job).asked_at is not None) == (1, None, True)
    there.refresh_from_db()
    assert there.failures == 1
    berlin.loses_answers = False
    look()
    assert (len(berlin.jobs), row_of(job).number) == (1, berlin.number)
    assert len(berlin.submitted) == 1, "it was found, and not sent again"
    look()
    assert (len(berlin.jobs), states(job)["main"]) == (1, "STARTING")


def test_a_request_that_never_arrived_is_sent_again_with_the_same_key(yard: Yard, berlin, there) -> None:
    job = left(yard)
    SiteJob.objects.update(asked_at=timezone.now())  # a worker that was lost between its note and the request
    look()
    assert list(berlin.keys) == [row_of(job).key]
    assert ("GET", "/jobs") in berlin.asked


def test_a_cancellation_is_forwarded_and_holds_once_the_site_confirms(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    berlin.run(berlin.number)
    look()
    service.cancel(job, "ada")
    assert states(job)["main"] == "STOPPING"
    berlin.instead["POST", f"/jobs/{berlin.number}/cancel"] = (503, b"{}")
    look()
    assert states(job)["main"] == "STOPPING"
    berlin.instead.clear()
    look()
    look()
    assert berlin.jobs[berlin.number]["state"] == "CANCELLED"
    assert states(job) == {"job": "CANCELLED", "main": "CANCELLED"}


def test_one_that_is_cancelled_before_it_was_asked_for_never_leaves(yard: Yard, berlin, there) -> None:
    job = left(yard)
    service.cancel(job, "ada")
    look()
    assert (berlin.submitted, states(job)["job"]) == ([], "CANCELLED")


@pytest.mark.parametrize(
    ("state", "code", "cause", "ours"),
    [("FAILED", 3, "EXIT_CODE", "EXIT_CODE"), ("FAILED", None, "OUT_OF_MEMORY", "OUT_OF_MEMORY"),
     ("FAILED", 1, "PREEMPTED", "EXIT_CODE"), ("FAILED", 1, "no such cause", "EXIT_CODE")],
)  # fmt: skip
def test_an_end_there_is_an_end_here(yard: Yard, berlin, there, state, code, cause, ours) -> None:
    job = left(yard)
    look()
    berlin.end(berlin.number, state, code, cause)
    look()
    assert states(job)["job"] == state
    assert (stage(job).cause, stage(job).exit_code) == (ours, code)


def test_a_site_that_is_lost_costs_nothing_that_runs_elsewhere_and_starts_nothing_twice(
    yard: Yard, berlin, there
) -> None:
    agent = yard.agent("n1")
    here = yard.submit(run="true")
    yard.cycle()
    agent.start()
    job = left(yard, on_node_lost="requeue_fast")
    look()
    berlin.run(berlin.number)
    look()
    berlin.instead["GET", "/version"] = (502, b"bad gateway")
    for _try in range(3):
        look()
    Node.objects.filter(is_site=True).update(last_report_at=timezone.now() - timedelta(hours=2))
    fleet.silent_nodes(1.0, 2.0, amnesty=False)
    fleet.silent_nodes(1.0, 2.0, amnesty=False)
    assert Node.objects.get(is_site=True).state == "LOST"
    record.give_up_lost(0.0, 0.0)
    Site.objects.update(answered_at=timezone.now() - timedelta(days=2))
    look()
    yard.cycle()
    assert (states(job)["main"], states(here)["main"]) == ("RUNNING", "RUNNING")
    assert Attempt.objects.filter(stage__job=job).count() == 1
    # It ran on there, and its end is taken over when the site is back.
    berlin.instead.clear()
    berlin.end(berlin.number, "COMPLETED", 0)
    look()
    assert states(job)["job"] == "COMPLETED"
    there.refresh_from_db()
    assert (there.condition, there.failures) == ("", 0)


def _silent(berlin: ScriptedSite) -> None:
    berlin.instead["GET", "/version"] = (502, b"bad gateway")
    look()
    Site.objects.update(answered_at=timezone.now() - timedelta(hours=2))


def test_a_job_that_says_so_starts_again_and_its_former_run_is_cancelled_there(yard: Yard, berlin, there) -> None:
    job = left(yard, on_site_lost="restart")
    look()
    berlin.run(berlin.number)
    look()
    _silent(berlin)
    look()
    assert states(job)["main"] == "PENDING"
    agent = yard.agent("n1", cpu("n1"), gpu("n1"))
    yard.cycle()
    agent.start()
    assert states(job)["main"] == "RUNNING"
    berlin.instead.clear()
    look()
    assert berlin.jobs[berlin.number]["state"] == "CANCELLED"
    look()
    assert SiteJob.objects.get().over_at is not None
    assert states(job)["main"] == "RUNNING"


def test_an_operator_may_confirm_that_nothing_runs_there(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    _silent(berlin)
    there.refresh_from_db()
    assert exchange.confirm_gone(there, "ada", "the building burnt down") == 1
    assert states(job)["main"] == "PENDING"
    assert exchange.confirm_gone(there, "ada", "again") == 0


def test_a_refusal_brings_the_job_back_and_the_site_is_not_asked_for_it_again(yard: Yard, berlin, there) -> None:
    berlin.instead["POST", "/jobs"] = (422, b'{"code": "invalid", "detail": "project guests may not do that"}')
    berlin.instead = {("POST", "/jobs?dry_run"): (200, b'{"verdict":"starts_now","stages":[{"starts_now":true}]}'),
                      **berlin.instead}  # fmt: skip
    job = left(yard)
    look()
    assert states(job)["main"] == "PENDING"
    assert SiteJob.objects.get().fault == "SiteRefused"
    yard.cycle()
    look()
    assert SiteJob.objects.count() == 1


HUGE = b'{"server": "' + b"x" * (2 << 20) + b'"}'
NONSENSE = [
    (200, b""), (200, b"\xff\xfe"), (200, b"[" * 100_000), (200, HUGE), (200, b'{"number": "five"}'), (302, b""),
    (200, b'{"number": 1e400}'), (500, b"<html>"), (200, b"null"), (204, b""),
]  # fmt: skip


@pytest.mark.parametrize("raw", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("where", [("GET", "/version"), ("GET", "/hardware"), ("GET", "/jobs/40"), ("POST", "/jobs")])
def test_nonsense_is_a_condition_and_harms_nobody(yard: Yard, berlin, there, where, raw) -> None:
    job = left(yard)
    if where != ("POST", "/jobs"):
        look()
    Site.objects.update(capacity_at=None)
    berlin.instead[where] = raw
    look()
    there.refresh_from_db()
    assert bool(there.condition) or row_of(job).fault == "SiteNonsense"
    assert len(there.condition) <= 400
    assert states(job)["main"] == "STARTING"
    berlin.instead.clear()
    look()
    look()
    berlin.end(berlin.number, "COMPLETED", 0)
    look()
    assert (states(job)["job"], len(berlin.jobs)) == ("COMPLETED", 1)


def test_a_job_of_others_is_not_taken_for_ours(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    number = berlin.number
    ours = dict(berlin.jobs[number])
    berlin.jobs[number] = {**ours, "labels": {"switchyard-part": "another"}, "state": "COMPLETED"}
    look()
    assert (states(job)["main"], row_of(job).fault) == ("STARTING", "SiteNonsense")
    berlin.jobs[number] = {**ours, "number": 41}
    look()
    assert (states(job)["main"], row_of(job).number) == ("STARTING", number)
    del berlin.jobs[number]
    look()
    assert (states(job)["main"], row_of(job).fault) == ("STARTING", "SiteForgot")
    berlin.jobs[number] = ours
    look()
    assert row_of(job).fault == ""


def test_control_characters_of_a_site_are_not_kept(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    berlin.jobs[berlin.number]["reason"]["text"] = "wait\x1b]52;c;x\x07ing\n" * 100
    look()
    assert row_of(job).reason.isprintable()
    assert len(row_of(job).reason) <= 300


def test_a_log_of_a_site_is_bounded(yard: Yard, berlin, there, settings: Any) -> None:
    settings.LOG_MAX_BYTES = 1_000
    job = left(yard)
    look()
    berlin.run(berlin.number)
    berlin.write(berlin.number, "out", b"x" * 700_000)
    look()
    berlin.end(berlin.number, "COMPLETED", 0)
    look()
    assert states(job)["job"] == "COMPLETED"
    assert 1_000 < len(text_of(job)) < 1_200


def test_a_second_attempt_there_follows_in_the_log(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    berlin.run(berlin.number)
    berlin.write(berlin.number, "out", b"first\n")
    look()
    berlin.run(berlin.number, attempt=2)
    berlin.write(berlin.number, "out", b"second\n", attempt=2)
    look()
    assert text_of(job) == b"first\nsecond\n"


def test_what_has_been_there_for_long_is_asked_for_less_often_unless_it_is_to_stop(yard: Yard, berlin, there) -> None:
    job = left(yard)
    look()
    SiteJob.objects.update(created_at=timezone.now() - timedelta(hours=1))
    before = berlin.asked.count(("GET", "/jobs/40"))
    look()
    assert berlin.asked.count(("GET", "/jobs/40")) == before
    SiteJob.objects.update(looked_at=timezone.now() - timedelta(seconds=11))
    look()
    assert berlin.asked.count(("GET", "/jobs/40")) == before + 1
    service.cancel(job, "ada")
    look()
    assert berlin.jobs[40]["state"] == "CANCELLED"


def test_a_wrong_token_is_a_condition_and_retries_are_bounded(yard: Yard, berlin, there) -> None:
    writer.set_token(there, "another-token", "ada")
    look()
    there.refresh_from_db()
    assert there.said[0]["code"] == "SiteDenied"
    assert there.retry_at > timezone.now()
    before = len(berlin.asked)
    exchange.look()
    assert len(berlin.asked) == before, "not before its time"
    assert TOKEN not in str(there.__dict__)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://169.254.169.254", "http://[::1]:1"])
def test_addresses_of_private_hosts_are_not_asked(yard: Yard, there, settings: Any, url: str) -> None:
    settings.SITE_NETWORKS = ()
    Site.objects.update(url=url)
    look()
    there.refresh_from_db()
    assert there.said[0] == clause("SiteUnreachable", what="https_only")


def test_only_so_many_leave(yard: Yard, berlin, there) -> None:
    Site.objects.update(most_jobs=2)
    several = [yard.submit(**GPU, sites="any") for _ in range(4)]
    yard.cycle()
    look()
    look()
    assert sorted(states(job)["main"] for job in several) == ["PENDING", "PENDING", "STARTING", "STARTING"]


def test_a_job_leaves_only_if_it_ends_earlier_there(yard: Yard, berlin, there) -> None:
    agent = yard.agent("n1")
    yard.submit(run="true", cpus=2, time_limit="10m", expected="10m")
    job = yard.submit(run="true", cpus=2, time_limit="10m", expected="10m", sites=["berlin"])
    yard.cycle()
    agent.start()
    yard.cycle()
    assert stage(job).expected is not None
    berlin.starts_in_s = 3_600.0
    look()
    assert states(job)["main"] == "PENDING"
    berlin.starts_in_s = 1.0
    look()
    assert states(job)["main"] == "STARTING"


def test_what_says_nothing_of_sites_stays(yard: Yard, berlin, there) -> None:
    yard.agent("n1")
    yard.submit(run="true", cpus=2)
    yard.cycle()
    waits = yard.submit(run="true", cpus=2)
    yard.cycle()
    look()
    assert (states(waits)["main"], SiteJob.objects.count()) == ("PENDING", 0)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"sites": ["paris"]}, "/sites"),
        ({"sites": 3}, "/sites"),
        ({"sites": []}, "/sites"),
        ({"data": {"site": "yard", "leave": "never"}, "sites": "any"}, "/sites"),
        ({"data": {"site": "berlin", "leave": "never"}, "site": "paris"}, "/data"),
        ({"data": {"leave": "never"}}, "/data/site"),
        ({"sites": ["berlin"], "nodes": 2}, "/sites"),
        ({"sites": ["berlin"], "env": {"T": "x"}, "secrets": ["T"]}, "/sites"),
        ({"sites": ["berlin"], "constraint": "ib"}, "/sites"),
        ({"sites": "any", "stages": [{"name": "a", "run": "x"}, {"name": "b", "run": "x"}]}, "/sites"),
        ({"sites": "any", "array": {"range": "1-3"}}, "/sites"),
    ],
)
def test_what_cannot_leave_is_refused(yard: Yard, there, spec: dict[str, Any], where: str) -> None:
    yard.agent("n1", gpu("n1"))
    with pytest.raises(InvalidSpec) as error:
        yard.submit(**spec)
    assert where in [fault.pointer for fault in error.value.errors], error.value.errors


def test_data_that_may_not_leave_a_site_are_worked_on_there(yard: Yard, berlin, there) -> None:
    yard.agent("n1")
    job = yard.submit(data={"site": "berlin", "leave": "never"})
    yard.cycle()
    assert states(job)["main"] == "PENDING"
    look()
    assert states(job)["main"] == "STARTING"
