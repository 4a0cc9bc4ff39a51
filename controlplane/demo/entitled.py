"""What projects of the simulated cluster may use and have used: quotas, budgets, limits, ledger,
schedules and retention."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

from controlplane.accounts.models import Project, User
from controlplane.clauses import clause, joined, told
from controlplane.demo.cluster import DemoCluster
from controlplane.functions import options as function_options
from controlplane.functions.models import DeployedFunction
from controlplane.jobs.models import Job, Part
from controlplane.pools.models import Budget, Limit, Pool, Quota
from controlplane.providers.models import NodeProvider, Pilot
from controlplane.retention.models import Override, Removal
from controlplane.schedules.models import Schedule, ScheduleRun
from controlplane.services import file as service_file
from controlplane.services.models import InferenceService, Promotion
from controlplane.sites.models import Site, SiteJob
from controlplane.usage import ledger
from controlplane.usage.models import LedgerDay, LedgerEntry, Price


def write(cluster: DemoCluster, since_days: int) -> None:
    """Write all of them; days before the last ``since_days`` have a ledger only, because their jobs were removed."""
    _accounted(cluster, since_days)
    _entitled(cluster)
    _scheduled(cluster)
    Override.objects.create(project=Project.objects.get(name="vision"), kind="logs", days=30, log_bytes=20 * 2**30)
    went = {"idempotency": {"rows": 12, "size_bytes": 0, "oldest": (cluster.now - timedelta(days=1)).isoformat()}}
    Removal.objects.create(went=went)
    _served(cluster)
    _called(cluster)
    _provided(cluster)
    _federated(cluster)


def _served(cluster: DemoCluster) -> None:
    """A service in its second revision, with an hour of requests; its replicas are not simulated."""
    project, user = Project.objects.get(name="vision"), User.objects.get(username="lin.wei")
    file: dict[str, Any] = {
        "name": "captions", "replicas": {"min": 1, "max": 4}, "slo": {"time_to_first_token": "0.5s", "share": "99%"},
        "template": {"run": 'vllm serve captions-7b --port "$PORT"', "devices": {"kind": "gpu", "count": 1}},
    }  # fmt: skip
    read = service_file.read(file)
    row = InferenceService.objects.create(
        name="captions", project=project, user=user, settings=read.settings, revision=2, former=1, wanted=2,
        changed_at=cluster.now, asked_at=cluster.now, heard_at=cluster.now,
    )  # fmt: skip
    for number, days in ((1, 9), (2, 2)):
        at = cluster.now - timedelta(days=days)
        revision = row.revisions.create(
            number=number, file=file, template=read.template, health=read.health, made_by="lin.wei", made_at=at,
            ready_at=at + timedelta(minutes=2),
        )  # fmt: skip
        for port in (24_100, 24_101):
            revision.replicas.create(
                port=port, made_at=at, running_at=at, ready_at=at + timedelta(minutes=2),
                ended_at=cluster.now - timedelta(days=2) if number == 1 else None, is_healthy=number == 2,
                outstanding=3 if number == 2 else 0, news_at=cluster.now,
            )  # fmt: skip
    _promoted(cluster, row)
    for ago in range(60):
        counts = [0, 4, 60, 140, 90, 30, 6, 1, 0, 0, 0, 0, 0, 0]
        row.minutes.create(
            at=(cluster.now - timedelta(minutes=ago)).replace(second=0, microsecond=0), requests=sum(counts),
            refused=2 if ago % 20 == 3 else 0, retried=ago % 7 == 0, queued=ago % 5, replicas=2, first_bytes=counts,
        )  # fmt: skip


def _promoted(cluster: DemoCluster, row: InferenceService) -> None:
    """What jobs brought to a service: the model that serves, one that is no better, and one that did badly on trial."""
    job = Job.objects.filter(project=row.project, state="COMPLETED").order_by("-number")[0]
    stage = job.stages.order_by("-index")[0].name
    asked = {
        "service": row.name, "from": stage, "output": "model", "metric": "perplexity", "at_most": 20.0,
        "at_least": None, "goal": "minimize", "better_than_serving": True,
        "canary": {"percent": 10.0, "for_s": 600.0, "errors_at_most": 1.0, "first_byte_s": None},
    }  # fmt: skip
    serving = row.revisions.get(number=2)
    serving.model_job = job.number
    serving.model = {"stage": stage, "output": "model", "digest": "5e" * 32, "reported": {"perplexity": 12.4}}
    serving.save(update_fields=["model_job", "model"])
    state = Promotion.PromotionState
    errors = told(clause("TrialErrors", errors=4, answers=38, most="1"))
    ends = (
        (state.PROMOTED, 12.4, 2, 1, told(clause("TrialPassed", errors=1, answers=512)), 512, 1),
        (
            state.REFUSED,
            13.1,
            None,
            None,
            told(clause("GateNotBetter", metric="perplexity", value="13.1", serving="12.4")),
            0,
            0,
        ),
        (
            state.ROLLED_BACK,
            11.9,
            3,
            2,
            joined([errors, told(clause("PromotionTakenBack", revision=2))], "Semicolon"),
            38,
            4,
        ),
    )
    for ago, (ended, value, revision, former, why, answers, failed) in zip((48, 20, 5), ends, strict=True):
        at = cluster.now - timedelta(hours=ago)
        row.promotions.create(
            attempt=uuid.uuid5(uuid.NAMESPACE_OID, f"promotion {ago}"), project=row.project, name=row.name,
            job=job.number, stage=stage, user=job.user.get_username(), asked=asked,
            reported={"perplexity": value}, state=ended, detail=why.text, said=why.said, value=value,
            revision=revision, former=former, answers=answers, errors=failed, made_at=at, trial_at=at,
            ended_at=at + timedelta(minutes=11),
        )  # fmt: skip


def _called(cluster: DemoCluster) -> None:
    """A function with an hour of calls, which sleeps half of the time, and calls in its queue."""
    project, user = Project.objects.get(name="vision"), User.objects.get(username="lin.wei")
    options: dict[str, Any] = {key: usual for key, (_low, _high, usual) in function_options.NUMBERS.items()}
    options |= {"concurrency": 4, "template": {"cpus": 0.5, "memory": "256MiB"}}
    file = function_options.service_file("thumbnails", "", "thumbnails.py", "0" * 64, options)
    read = service_file.read(file)
    row = InferenceService.objects.create(
        name="thumbnails", project=project, user=user, settings=read.settings, wanted=1,
        changed_at=cluster.now, asked_at=cluster.now, heard_at=cluster.now,
    )  # fmt: skip
    at = cluster.now - timedelta(days=3)
    revision = row.revisions.create(
        number=1, file=file, template=read.template, health=read.health, made_by="lin.wei", made_at=at, ready_at=at
    )
    for port, ago in ((24_200, 0), (24_201, 40), (24_202, 200)):
        began = cluster.now - timedelta(minutes=ago + 8)
        revision.replicas.create(
            port=port, made_at=began, running_at=began, ready_at=began, is_healthy=not ago, news_at=cluster.now,
            ended_at=began + timedelta(minutes=12) if ago else None, outstanding=0 if ago else 2,
        )  # fmt: skip
    for ago in range(60):
        counts: list[int] = [0] * 14 if 8 <= ago < 30 else [30, 60, 20, 4, 1, *[0] * 9]
        total, cold = sum(counts), ago in (7, 40)
        row.minutes.create(
            at=(cluster.now - timedelta(minutes=ago)).replace(second=0, microsecond=0), requests=total,
            errors=2 if ago % 6 == 2 and total else 0, cold=2 if cold else 0, cold_ms=187 if cold else 0,
            replicas=1 if total else 0, first_bytes=counts,
        )  # fmt: skip
    function = DeployedFunction.objects.create(service=row, file="thumbnails.py", code=_THUMBNAILS, options=options)
    for number, (state, tries, fault) in enumerate(
        (("DONE", 0, ""), ("DONE", 1, ""), ("DEAD", 3, "ValueError: no picture at this address"), ("QUEUED", 0, ""))
    ):
        made_at = cluster.now - timedelta(minutes=20 - number)
        ended_at = None if state == "QUEUED" else made_at + timedelta(seconds=2)
        event = json.dumps({"picture": f"photos/{number}.jpg"})
        function.calls.create(
            user=user, key=f"photo-{number}", state=state, tries=tries, fault=fault, event=event, takes=tries + 1,
            size_bytes=len(event), result='"done"' if state == "DONE" else "", made_at=made_at, ended_at=ended_at,
            status=500 if fault else 200 if ended_at else None, due_at=cluster.now + timedelta(days=3_650),
        )  # fmt: skip


_THUMBNAILS = """from PIL import Image


def handle(event):
    with Image.open(event["picture"]) as picture:
        picture.thumbnail((256, 256))
        picture.save("small/" + event["picture"])
    return "done"
"""


def _provided(cluster: DemoCluster) -> None:
    """A provider that brought nodes yesterday; it is disabled, for there is no Slurm behind it."""
    row = NodeProvider.objects.create(
        name="campus", kind="slurm", pool=Pool.objects.get(name="simulated"), enabled=False, max_nodes=8, hours=4.0,
        settings={"python": "/opt/switchyard/bin/python", "partition": "gpu"}, budget_node_hours=500.0,
        shapes=[{"name": "h100x4", "cpus": 32, "memory_gib": 256, "gres": "gpu:h100:4",
                 "devices": [{"kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "count": 4, "memory_gib": 80}]}],
    )  # fmt: skip
    for number, (why, lasted_h) in enumerate((("idle", 1.5), ("ends", 4.0), ("refused", 0.0))):
        asked_at = cluster.now - timedelta(hours=30 - number)
        gone_at = asked_at + timedelta(hours=lasted_h)
        Pilot.objects.create(
            provider=row, shape="h100x4", hours=4.0, label=f"yard-{row.tag}-{number:032x}", state="GONE", why=why,
            handle=str(40_123 + number) if lasted_h else "", created_at=asked_at, gone_at=gone_at,
            up_at=asked_at if lasted_h else None, joined_at=asked_at if lasted_h else None,
            ends_at=asked_at + timedelta(hours=4) if lasted_h else None,
        )  # fmt: skip


def _federated(cluster: DemoCluster) -> None:
    """A site that took a job yesterday, and is disabled, for there is none behind it."""
    row = Site.objects.create(
        name="berlin", url="https://yard.berlin.example.org", project="guests", pools=["default"], price=1.5,
        locations=["berlin-1"], enabled=False, answered_at=cluster.now - timedelta(hours=20),
        capacity={"devices": [{"kind": "gpu", "model": "NVIDIA H100 80GB HBM3", "count": 16, "free": 6}], "waiting": 4},
        capacity_at=cluster.now - timedelta(hours=20),
    )  # fmt: skip
    part = Part.objects.filter(ended_at__isnull=False, attempt__stage__state="COMPLETED").order_by("id").first()
    if part is not None:
        SiteJob.objects.create(
            part=part, site=row, key=f"{part.pk.hex}-1-000000000000", number=4711, state="COMPLETED",
            asked_at=part.started_at, created_at=part.attempt.created_at, over_at=part.ended_at,
        )  # fmt: skip


def _scheduled(cluster: DemoCluster) -> None:
    """A schedule that has been followed for a week, and was refused and skipped once."""
    project, user = Project.objects.get(name="vision"), User.objects.get(username="lin.wei")
    row = Schedule.objects.create(
        name="nightly-eval", project=project, user=user, job={"name": "eval", "run": "python eval.py"},
        cron="30 2 * * *", zone="Europe/Berlin", next_at=cluster.now + timedelta(hours=9),
    )  # fmt: skip
    for ago, outcome, detail in ((1, "skipped", "job #9 has not ended"), (2, "refused", "/pool: there is no pool x")):
        at = cluster.now - timedelta(days=ago)
        ScheduleRun.objects.create(schedule=row, due_at=at, at=at, outcome=outcome, detail=detail)
    for ago in range(3, 8):
        at = cluster.now - timedelta(days=ago)
        ScheduleRun.objects.create(schedule=row, due_at=at, at=at, outcome="submitted", number=ago)


def _accounted(cluster: DemoCluster, since_days: int) -> None:
    """The ledger of the days whose jobs are there, and that of the month before, whose jobs have gone."""
    ledger.refresh(cluster.now, longest_s=300.0)
    pool, people = Pool.objects.get(name="simulated"), list(User.objects.exclude(username="admin").order_by("id"))
    models = (("gpu", "H100", 16), ("gpu", "MI300X", 12), ("npu", "Ascend 910B", 12), ("cpu", "EPYC 9654", 300))
    entries = []
    for ago in range(since_days + 2, 30):
        day = cluster.now.date() - timedelta(days=ago)
        for number, project in enumerate(Project.objects.order_by("name")):
            for kind, model, most in models:
                hours = most * 24 * cluster.rng.uniform(0.05, 0.4) * (0.4 if day.weekday() > 4 else 1.0)
                held = int(hours * 3_600_000)
                entries.append(
                    LedgerEntry(
                        day=day,
                        project=project,
                        user=people[(number + ago) % len(people)],
                        pool=pool,
                        kind=kind,
                        model=model,
                        allocated_ms=held,
                        charged_ms=held if kind != "cpu" else held // 32,
                        known_ms=held * 9 // 10,
                        busy_ms=int(held * cluster.rng.uniform(0.3, 0.85)),
                        preempted_ms=held // 60,
                        failed_ms=held // 40,
                        powered_ms=held if kind == "gpu" else 0,
                        millijoules=held * 450 if kind == "gpu" else 0,
                        attempts=cluster.rng.randrange(2, 40),
                    )
                )
        LedgerDay.objects.create(day=day, built_at=cluster.now, is_due=False, has_jobs=True)
    LedgerEntry.objects.bulk_create(entries)
    first = cluster.now.date() - timedelta(days=365)
    for kind, model, price in (("gpu", "", "1.20"), ("gpu", "H100", "2.80"), ("npu", "", "1.10"), ("cpu", "", "0.03")):
        Price.objects.create(kind=kind, model=model, per_device_hour=price, valid_from=first)


def _entitled(cluster: DemoCluster) -> None:
    """Quotas, budgets and limits of the projects, from plenty to used up."""
    projects = list(Project.objects.order_by("name"))
    for number, project in enumerate(projects):
        for kind in ("gpu", "npu"):
            nominal = 6 * (len(projects) - number)
            Quota.objects.create(project=project, kind=kind, cohort="lab", nominal=nominal, borrowing_limit=24)
        Budget.objects.create(
            project=project, kind="gpu", hours=2500 * (number + 1), at_end=("hold", "notify")[number % 2]
        )
    Quota.objects.create(project=projects[0], kind="gpu", model="MI300X", nominal=None)
    Budget.objects.create(project=projects[0], normalised=True, period="quarter", hours=90_000)
    today = cluster.now.date()
    first, last = today - timedelta(days=20), today + timedelta(days=70)
    Budget.objects.create(
        project=projects[-1], period="dates", first_day=first, last_day=last, hours=800, at_end="stop"
    )  # fmt: skip
    Limit.objects.create(running=40, waiting=500)
    Limit.objects.create(project=projects[0], devices=16)
