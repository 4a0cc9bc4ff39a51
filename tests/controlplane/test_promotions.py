"""Promotions over REST and behind it: what a job file may ask, who may, how the gate is judged, and the way back."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from agents.protocol import Exit, Phase, Progress
from agents.protocol import Output as Left
from controlplane.accounts.models import AuditEntry, Member, Project, User
from controlplane.jobs.models import Event, Job, Stage
from controlplane.notifications.models import Notice, NoticeChoice, Webhook, WebhookDelivery
from controlplane.retention.kinds import _ended_jobs
from controlplane.services import promotions
from controlplane.services.models import InferenceService, Promotion, Replica
from tests.controlplane.people import Person, Town
from tests.controlplane.test_services import SECRET, Cluster, told

GATE = {"metric": "perplexity", "at_most": 20}
PROMOTE = {"service": "chat", "model": "model", "when": GATE}
DIGEST = "a" * 64


@pytest.fixture
def cluster(town: Town, settings: Any) -> Cluster:
    """A service of the owner with two replicas that answer."""
    settings.ROUTER_KEY = SECRET
    template = {"run": "serve", "cpus": 0.1, "memory": "64MiB", "devices": {"kind": "cpu"}}
    found = Cluster(town, Client(headers={"authorization": f"Bearer {SECRET}"}), template=template)
    for _ in range(4):
        found.follow()
    assert found.row.revisions.get().ready_at is not None
    return found


def file(**promote: Any) -> dict[str, Any]:
    return {"name": "tune", "run": "true", "cpus": 0.1, "outputs": ["model"], "promote": {**PROMOTE, **promote}}


def submit(cluster: Cluster, person: Person | None = None, **promote: Any) -> Job:
    answer = (person or cluster.town.owner).post("/jobs", file(**promote))
    assert answer.status_code == 201, answer.content
    return Job.objects.get(number=answer.json()["number"])


def complete(cluster: Cluster, job: Job, digest: str = DIGEST, **values: Any) -> Promotion:
    """Let a job run and complete with these reported values and its output; return its promotion."""
    finish(cluster, job, digest, **values)
    promotions.note_completed(cluster.at)
    return Promotion.objects.get(job=job.number)


def finish(cluster: Cluster, job: Job, digest: str = DIGEST, **values: Any) -> None:
    cluster.town.cycle()
    cluster.agent.start()
    stage = job.stages.get()
    outputs = [Left("model", digest, 10, 1)] if digest else []
    progress = Progress(step=1, total=1, values=values)
    cluster.agent.set(stage, Phase.ENDED, exit=Exit(code=0), progress=progress, outputs=outputs)
    stage.refresh_from_db()
    assert stage.state == "COMPLETED"


def follow(cluster: Cluster, seconds: float = 1.0) -> None:
    """Let a second pass in which the replicas that were told to stop have ended."""
    cluster.follow(seconds)
    for stage in Stage.objects.filter(state="STOPPING"):
        cluster.agent.set(stage, Phase.ENDED, exit=Exit(code=0, stopped=True))


def refresh(one: Promotion) -> Promotion:
    one.refresh_from_db()
    return one


def until_ended(cluster: Cluster, one: Promotion) -> Promotion:
    for _ in range(30):
        follow(cluster)
        if refresh(one).ended_at is not None:
            break
    return one


def events(job: Job) -> list[str]:
    return [each.kind for each in Event.objects.filter(job=job).exclude(stage="").order_by("seq")]


def test_a_model_that_passes_is_served_by_new_replicas_and_the_old_ones_go_when_they_answer(cluster: Cluster) -> None:
    job = submit(cluster)
    one = complete(cluster, job, perplexity=12.5)
    before = set(Replica.objects.filter(ended_at=None).values_list("pk", flat=True))
    follow(cluster)
    assert (refresh(one).state, cluster.row.revision, cluster.row.former) == ("TRIAL", 2, 1)
    assert Replica.objects.filter(pk__in=before, drains_at=None).count() == 2
    until_ended(cluster, one)
    assert one.state == "PROMOTED"
    assert one.detail == "perplexity 12.5 passes; revision 2 serves with all replicas"
    revision = cluster.row.revisions.get(number=2)
    assert (revision.model_job, revision.model["digest"], revision.made_by) == (job.number, DIGEST, "owner")
    served = Job.objects.get(number=Replica.objects.filter(revision=revision).first().job)  # type: ignore[union-attr]
    (read,) = served.stages.get().request["inputs"]
    path = f"/shared/{job.number}/outputs/main/model"
    assert read == {
        "name": "model", "from": "main", "output": "model", "job": job.number, "digest": DIGEST, "at": path,
    }  # fmt: skip
    assert served.spec["stages"][0]["run"].startswith('export SERVICE_MODEL="$YARD_INPUT_DIR/model"\n')
    assert events(job)[-2:] == ["promotion", "promoted"]
    entry = AuditEntry.objects.get(action="service.promote")
    assert (entry.actor, entry.after["revision"], entry.name) == ("owner", 2, "default/chat")
    # The job is kept as long as a revision has its model.
    assert job not in _ended_jobs(job.project)
    shown = cluster.shown()
    (told_,) = shown["promotions"]
    assert (told_["job"], told_["state"], told_["metric"], told_["value"]) == (
        job.number,
        "PROMOTED",
        "perplexity",
        12.5,
    )
    assert (told_["user"], told_["revision"], told_["former"]) == ("owner", 2, 1)
    assert [each["model_job"] for each in shown["revisions"]] == [job.number, None]


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({"perplexity": 20.5}, "perplexity 20.5 is above 20"),
        ({"loss": 1.0}, "perplexity was never reported"),
        ({"perplexity": "nan"}, "perplexity is nan, which is no finite number"),
        ({"perplexity": True}, "perplexity is True, which is no finite number"),
    ],
)
def test_a_gate_that_is_not_passed_changes_nothing_and_says_why(
    cluster: Cluster, values: dict[str, Any], detail: str
) -> None:
    owner = User.objects.get(username="owner")
    NoticeChoice.objects.create(user=owner, ends="failed", language="en")
    job = submit(cluster)
    one = complete(cluster, job, **values)
    follow(cluster)
    assert (refresh(one).state, one.detail) == ("REFUSED", detail)
    assert (cluster.row.revision, cluster.row.revisions.count()) == (1, 1)
    job.refresh_from_db()
    assert (job.state, events(job)[-1]) == ("COMPLETED", "gate_refused")
    assert Notice.objects.get(job=job).event == "gate_refused"


def test_what_an_earlier_attempt_reported_does_not_count(cluster: Cluster) -> None:
    answer = cluster.town.owner.post("/jobs", {**file(), "retry": {"max": 2, "on": ["exit_code"], "backoff": "1s"}})
    job = Job.objects.get(number=answer.json()["number"])
    cluster.town.cycle()
    cluster.agent.start()
    failed = Exit(code=1, cause="EXIT_CODE")
    progress = Progress(step=1, total=1, values={"perplexity": 1.0})
    cluster.agent.set(job.stages.get(), Phase.ENDED, exit=failed, progress=progress)
    Stage.objects.filter(job=job).update(retry_at=None)
    one = complete(cluster, job)
    follow(cluster)
    assert (refresh(one).state, one.detail) == ("REFUSED", "perplexity was never reported")


def test_an_attempt_is_promoted_once_however_often_it_is_told_and_looked_at(cluster: Cluster) -> None:
    job = submit(cluster)
    one = complete(cluster, job, perplexity=3.0)
    for _ in range(3):
        cluster.agent.report()
        promotions.note_completed(cluster.at)
        follow(cluster)
    assert Promotion.objects.count() == 1
    until_ended(cluster, one)
    promotions.note_completed(cluster.at)
    assert (Promotion.objects.count(), cluster.row.revisions.count()) == (1, 2)
    # What nobody noted for long is not promoted by surprise.
    Promotion.objects.all().delete()
    assert promotions.note_completed(cluster.at + timedelta(days=8)) == 0


def test_two_at_once_follow_each_other_and_the_second_is_compared_with_the_first(cluster: Cluster) -> None:
    gate = {**GATE, "better_than_serving": True}
    first, second, third = (submit(cluster, when=gate) for _ in range(3))
    for job, value in ((first, 10.0), (second, 11.0), (third, 9.0)):
        finish(cluster, job, perplexity=value)
    promotions.note_completed(cluster.at)
    rows = [Promotion.objects.get(job=job.number) for job in (first, second, third)]
    follow(cluster)
    assert [refresh(one).state for one in rows] == ["TRIAL", "WAITING", "WAITING"]
    until_ended(cluster, rows[2])
    assert [refresh(one).state for one in rows] == ["PROMOTED", "REFUSED", "PROMOTED"]
    assert rows[0].detail.startswith("perplexity 10 passes; of the model that serves it is not known")
    assert rows[1].detail == "perplexity 11 is not better than 10 of the model that serves"
    assert cluster.row.revision == 3


def test_without_anything_to_compare_with_and_no_bound_nothing_passes(cluster: Cluster) -> None:
    gate = {"metric": "perplexity", "goal": "minimize", "better_than_serving": True}
    one = complete(cluster, submit(cluster, when=gate), perplexity=1.0)
    follow(cluster)
    assert refresh(one).state == "REFUSED"
    assert "cannot be compared" in one.detail


def test_a_canary_with_bad_answers_is_taken_back(cluster: Cluster) -> None:
    job = submit(cluster, canary={"percent": "10%", "for": "10m", "errors_at_most": "1%"})
    one = complete(cluster, job, perplexity=3.0)
    for _ in range(4):
        follow(cluster)
    assert (refresh(one).state, cluster.row.settings["canary"]) == ("TRIAL", 10)
    assert one.trial_at is not None
    empty: Any = {"router": "r", "members": [], "services": []}
    (service,) = told(cluster.router, "sync", empty)["services"]
    assert service["weights"] == {"2": 10, "1": 90}
    answered(cluster, 2, answers=19, errors=1)
    follow(cluster)
    assert refresh(one).state == "TRIAL"
    answered(cluster, 2, answers=1, errors=0)
    answered(cluster, 1, answers=50, errors=50)
    follow(cluster)
    assert (refresh(one).state, one.detail) == (
        "ROLLED_BACK", "1 of 20 answers failed, more than 1 %; revision 1 serves again",
    )  # fmt: skip
    assert (cluster.row.revision, cluster.row.former, cluster.row.settings["canary"]) == (1, None, 100)
    assert events(job)[-1] == "rolled_back"
    for _ in range(4):
        follow(cluster)
    assert {each.revision.number for each in Replica.objects.filter(ended_at=None)} == {1}


def test_a_canary_that_fails_from_its_first_answer_is_taken_back_though_it_is_never_ready(cluster: Cluster) -> None:
    """Routers leave a replica alone that fails again and again, and say that it is not well."""
    job = submit(cluster, canary={"percent": "10%", "for": "10m", "errors_at_most": "10%"})
    one = complete(cluster, job, perplexity=3.0)
    first = max(Replica.objects.values_list("pk", flat=True))
    new = frozenset(range(first + 1, first + 100))
    for _ in range(4):
        cluster.follow(ill=new)
    assert (refresh(one).state, one.trial_at) == ("TRIAL", None)
    row = Replica.objects.get(revision__number=2, ended_at=None)
    member = {"id": row.pk, "healthy": False, "outstanding": 0, "draining": False, "fault": "it closed the connection"}
    for answers, state in ((3, "TRIAL"), (2, "ROLLED_BACK")):
        told_ = {**member, "answers": answers, "errors": answers, "first_bytes": []}
        told(cluster.router, "sync", {"router": "r", "members": [told_], "services": []})
        cluster.follow(ill=new)
        assert refresh(one).state == state
    assert one.detail == "5 of 5 answers failed, more than 10 %; revision 1 serves again"
    assert cluster.row.revision == 1


def test_a_canary_that_does_well_gets_everything_when_its_time_is_over(cluster: Cluster) -> None:
    one = complete(cluster, submit(cluster, canary={"for": "1m"}), perplexity=3.0)
    for _ in range(4):
        follow(cluster)
    answered(cluster, 2, answers=5, errors=0)
    follow(cluster, 61)
    assert (refresh(one).state, cluster.row.settings["canary"]) == ("PROMOTED", 100)
    assert one.detail.endswith("0 of 5 answers failed")


def answered(cluster: Cluster, revision: int, *, answers: int, errors: int) -> None:
    row = Replica.objects.filter(revision__number=revision, ended_at=None, ready_at__isnull=False).first()
    assert row is not None
    member = {"id": row.pk, "healthy": True, "outstanding": 0, "draining": False, "answers": answers, "errors": errors}
    report = {"router": "r", "members": [{**member, "first_bytes": [answers]}], "services": []}
    told(cluster.router, "sync", report)


def test_a_model_that_does_not_load_is_taken_back_with_the_reason(cluster: Cluster) -> None:
    one = complete(cluster, submit(cluster), perplexity=3.0)
    for _ in range(60):
        follow(cluster, 20)
        for row in Replica.objects.filter(revision__number=2, ended_at=None, job__isnull=False):
            stage = Stage.objects.get(job__number=row.job)
            if stage.state == "RUNNING":
                cluster.agent.end(stage, code=1)
        if refresh(one).ended_at:
            break
    assert one.state == "ROLLED_BACK"
    assert "its replicas do not serve: job #" in one.detail
    assert one.detail.endswith("revision 1 serves again")
    assert cluster.row.revision == 1


def test_rights_are_judged_again_when_the_stage_has_completed(cluster: Cluster) -> None:
    job = submit(cluster, cluster.town.lead)
    Member.objects.filter(user__username="lead").update(role="member")
    one = complete(cluster, job, perplexity=3.0)
    follow(cluster)
    assert (refresh(one).state, one.user) == ("REFUSED", "lead")
    assert one.detail == "lead may not change service chat of project default any more"


def test_who_may_promote_to_what_is_said_at_submission(cluster: Cluster) -> None:
    town = cluster.town

    def refused(person: Person, **given: Any) -> tuple[str, str]:
        answer = person.post("/jobs", {**file(), **given})
        assert answer.status_code == 422, answer.content
        (fault,) = json.loads(answer.content)["errors"]
        return fault["pointer"], fault["detail"]

    assert refused(town.mate)[0] == "/promote/service"
    assert refused(town.stranger, project="other") == (
        "/promote/service", 'project other has no service "chat"; there are none',
    )  # fmt: skip
    other = {**PROMOTE, "service": "chart"}
    assert refused(town.owner, promote=other) == (
        "/promote/service", 'project default has no service "chart"; did you mean chat?',
    )  # fmt: skip
    for model in ("../model", "/etc/passwd", "outputs/../x", "a/b/c"):
        assert refused(town.owner, promote={**PROMOTE, "model": model})[0] == "/promote/model"
    assert "name it under outputs" in refused(town.owner, outputs=[])[1]
    for when, key in (
        ({}, "metric"), ({"metric": "m"}, ""), ({"metric": "m", "better_than_serving": True}, "goal"),
        ({"metric": "m", "at_most": 1, "at_least": 2}, "at_least"), ({"metric": "m", "at_most": float("inf")}, ""),
    ):  # fmt: skip
        answer = town.owner.post("/jobs", file(when=when))
        assert answer.status_code in (400, 422)
        if answer.status_code == 422:
            pointers = [each["pointer"] for each in json.loads(answer.content)["errors"]]
            assert any(pointer.startswith(f"/promote/when{'/' + key if key else ''}") for pointer in pointers), pointers
    assert not Promotion.objects.exists()


def test_an_output_of_another_project_is_no_input(cluster: Cluster) -> None:
    job = submit(cluster)
    finish(cluster, job, perplexity=3.0)
    reads: dict[str, Any] = {"run": "true", "inputs": [{"job": job.number, "from": "main", "output": "model"}]}
    assert cluster.town.owner.post("/jobs", reads).status_code == 201
    for lacks in ("from", "output"):
        one = {key: each for key, each in reads["inputs"][0].items() if key != lacks}
        answer = cluster.town.owner.post("/jobs", {**reads, "inputs": [one]})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/inputs/0/{lacks}")
    answer = cluster.town.stranger.post("/jobs", {**reads, "project": "other"})
    (fault,) = json.loads(answer.content)["errors"]
    assert (fault["pointer"], fault["code"]) == ("/inputs/0/job", "unknown_output")


def test_a_service_of_that_name_in_another_project_is_untouched(cluster: Cluster) -> None:
    other = Project.objects.get(name="other")
    job = submit(cluster)
    InferenceService.objects.update(project=other)
    one = complete(cluster, job, perplexity=3.0)
    follow(cluster)
    assert (refresh(one).state, cluster.row.revision) == ("REFUSED", 1)
    assert one.detail == "the project has no service chat any more"


def test_another_file_keeps_the_promoted_model_unless_it_names_one_and_a_rollback_leaves_it(cluster: Cluster) -> None:
    one = complete(cluster, submit(cluster), perplexity=3.0)
    until_ended(cluster, one)
    path, base = f"/services/{cluster.number}", cluster.shown()["file"]

    def change(given: dict[str, Any]) -> Any:
        answer = cluster.town.owner.patch(path, {"file": given}, **{"If-Match": "*"})
        assert answer.status_code == 200, answer.content
        return cluster.row.revisions.get(number=cluster.row.revision)

    assert change({**base, "replicas": 3}).number == 2
    carried = change({**base, "template": {**base["template"], "env": {"A": "1"}}})
    assert (carried.number, carried.model_job) == (3, one.job)
    assert change({**base, "model": "own"}).model_job is None
    answer = cluster.town.owner.post(f"{path}/rollback", {"revision": 1})
    assert (answer.status_code, cluster.row.revision) == (200, 1)


def test_somebody_who_rolls_back_during_the_trial_ends_it(cluster: Cluster) -> None:
    one = complete(cluster, submit(cluster, canary={}), perplexity=3.0)
    for _ in range(3):
        follow(cluster)
    assert cluster.town.owner.post(f"/services/{cluster.number}/rollback", {}).status_code == 200
    follow(cluster)
    assert (refresh(one).state, one.detail) == ("REPLACED", "somebody had revision 1 serve meanwhile")


def test_a_webhook_is_told(cluster: Cluster) -> None:
    project = Project.objects.get(name="default")
    Webhook.objects.create(
        project=project, name="chat", url="https://example.org/hook", states=["FAILED"], made_by="lead",
        ciphertext=b"x", wrapped_key=b"x", key_id="k", created_at=cluster.at,
    )  # fmt: skip
    answer = cluster.town.owner.post("/jobs", {**file(), "notify": [{"on": ["promoted"], "to": "webhook:chat"}]})
    one = complete(cluster, Job.objects.get(number=answer.json()["number"]), perplexity=3.0)
    until_ended(cluster, one)
    data = WebhookDelivery.objects.get().data
    assert (data["event"], data["service"], data["revision"]) == ("promoted", "chat", 2)


def test_a_sleeping_service_tries_the_model_before_anybody_asks(cluster: Cluster) -> None:
    row = cluster.row
    row.settings = {**row.settings, "min": 0, "idle_s": 1.0}
    row.wanted = 0
    row.save()
    one = complete(cluster, submit(cluster), perplexity=3.0)
    until_ended(cluster, one)
    assert one.state == "PROMOTED"
    assert Replica.objects.filter(revision__number=2, ready_at__isnull=False).count() == 1
