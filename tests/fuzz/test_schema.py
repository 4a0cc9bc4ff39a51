"""Every operation of ``openapi.yaml`` as each role: requests made from its description, and answers held against it.

Each request is made once and sent as everybody, to the cluster of the demonstration; what it changed is undone. Parts
of addresses name rows that there are, so that more is tried than the answer 404.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from django.contrib.auth.models import Group, Permission
from django.core.cache import cache
from django.db import transaction
from django.test import Client, override_settings
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.specs.openapi import checks as openapi

from controlplane.accounts import roles, service
from controlplane.accounts.models import Member, Project, Token, User
from controlplane.demo.plant import plant
from controlplane.fleet import service as fleet
from controlplane.fleet.models import MaintenanceWindow, Node
from controlplane.functions.models import DeployedFunction, FunctionCall
from controlplane.jobs.models import Array, Attempt, Bundle, Decision, Job, Operation, Part, StageTrace
from controlplane.notifications.models import TriedDelivery
from controlplane.pools.models import Budget, Limit, Pool, Quota
from controlplane.schedules.models import Schedule
from controlplane.services.models import InferenceService
from controlplane.simulations.models import Simulation
from tests.record.conftest import forget
from tests.record.yard import Agent, gpu

SCHEMA = schemathesis.openapi.from_dict(
    yaml.load((Path(__file__).parents[2] / "openapi.yaml").read_text(), yaml.CSafeLoader)
)
SCHEMA.config.generation.update(with_security_parameters=False)
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
IN_PROJECT = ("viewer", "member", "lead")
IN_GROUP = (roles.OPERATOR, roles.ACCOUNTANT, roles.AUDITOR)
PEOPLE = ("anonymous", *IN_PROJECT, *IN_GROUP, "superuser")
CHECKS = [
    not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
]
LONG = bool(os.environ.get("YARD_LONG"))
pytestmark = pytest.mark.django_db
# Of how many operations an example succeeds for a superuser, at least.
SUCCEED = 160
SURVIVOR = "5f1c0f0e-5a4e-4d7e-9a53-0c2f5d1b8c11"


def tarball() -> bytes:
    """A bundle of one file, the same each time."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("train.py"))
    return gzip.compress(held.getvalue(), mtime=0)


schemathesis.openapi.media_type("application/gzip", st.sampled_from([tarball(), b"", b"no archive"]))


@schemathesis.serializer("application/gzip")
def as_it_is(_context: schemathesis.SerializationContext, value: bytes) -> dict[str, bytes]:
    return {"data": value}


class Scene:
    """The cluster, somebody of each role, and the rows that addresses may name."""

    def __init__(self) -> None:
        roles.install(Group, Permission)
        plant(days=0)
        project = Project.objects.get(name="vision")
        self.clients = {"anonymous": Client(raise_request_exception=False)}
        for name in PEOPLE[1:]:
            user = User.objects.create(username=name, default_project=project, is_superuser=name == "superuser")
            if name in IN_PROJECT:
                Member.objects.create(project=project, user=user, role=name)
            elif name in IN_GROUP:
                user.groups.set(Group.objects.filter(name=name))
            secret = service.make_token(user, "fuzz", scopes=service.SCOPES)[1]
            self.clients[name] = Client(raise_request_exception=False, headers={"authorization": f"Bearer {secret}"})
        agent = Agent(fleet.enrol(fleet.make_join_token(Pool.objects.get(name="default")), "n1")[0], [gpu("n1")])
        agent.report()
        Node.objects.filter(name="n1").update(
            survivors={
                SURVIVOR: {
                    "attempt": SURVIVOR, "epoch": 1, "phase": 50, "pid": 7, "devices": [], "stopped_by": "",
                    "since": "2026-01-01T00:00:00+00:00", "forgotten_by": "",
                }
            }
        )  # fmt: skip
        self.make()
        self.rows = self.named()

    def make(self) -> None:
        """Rows that the demonstration has none of, made as people make them."""
        for name, method, path, kind, body in (
            ("member", "POST", "bundles", "application/gzip", tarball()),
            (
                "member",
                "POST",
                "schedules",
                "application/json",
                {"name": "nightly", "cron": "0 3 * * *", "job": {"run": "true"}},
            ),
            (
                "member",
                "POST",
                "services",
                "application/json",
                {"file": {"name": "answers", "template": {"run": "true"}}},
            ),
            ("member", "POST", "functions", "application/json", {"name": "adds", "code": "def handle(event): ..."}),
            ("member", "POST", "tokens", "application/json", {"name": "laptop"}),
            ("lead", "PUT", "projects/vision/secrets/HF_TOKEN", "application/json", {"value": "a long enough value"}),
            (
                "lead",
                "PUT",
                "templates/ours?project=vision",
                "application/json",
                {"title": "ours", "parameters": [], "job": {"run": "true"}},
            ),
        ):
            sent = body if isinstance(body, bytes) else json.dumps(body)
            answer = self.clients[name].generic(method, f"/api/v1/{path}", sent, content_type=kind)
            assert answer.status_code in {200, 201}, (path, answer.content)
        part, now = Part.objects.filter(attempt__stage__job__project__name="vision").latest("id"), timezone.now()
        asked = {"asked_by": User.objects.get(username="member"), "asked_at": now, "ended_at": now}
        StageTrace.objects.create(part=part, tool="py-spy", seconds=10, state=StageTrace.State.FAILED, **asked)

    def named(self) -> dict[str, list[str]]:
        """What addresses may have after ``/api/v1/<first step>``, by that step and the name of the parameter."""
        jobs = Job.objects.filter(project__name="vision")
        of_state = [
            jobs.filter(state=state).latest("number").number
            for state in sorted(set(jobs.values_list("state", flat=True)))
        ]
        member = User.objects.get(username="member")
        found: dict[str, Iterable[Any]] = {
            "arrays name": Array.objects.values_list("pk", flat=True),
            "attempts name": Attempt.objects.filter(stage__job__project__name="vision")
            .order_by("ended_at")
            .values_list("pk", flat=True),
            "budgets number": Budget.objects.values_list("pk", flat=True),
            "bundles sha256": Bundle.objects.values_list("pk", flat=True),
            "decisions number": Decision.objects.values_list("pk", flat=True),
            "devices name": ["GPU-n1-0", "g01-gpu0"],
            "jobs name": of_state,
            "jobs trace": StageTrace.objects.values_list("pk", flat=True),
            "limits number": Limit.objects.values_list("pk", flat=True),
            "maintenance-windows number": MaintenanceWindow.objects.values_list("pk", flat=True),
            "nodes name": ["n1", "g01", "c01"],
            "operations number": Operation.objects.values_list("pk", flat=True),
            "pools name": ["default", "simulated"],
            "priority-classes name": ["low", "urgent"],
            "profiles name": ["night-shift", "hybrid"],
            "profiles number": [2, 1],
            "projects name": ["vision", "other"],
            "projects user": ["viewer", "stranger"],
            "projects secret": ["HF_TOKEN"],
            "projects webhook": ["chat"],
            "projects event": TriedDelivery.objects.filter(status=204).values_list("event", flat=True),
            "providers name": ["campus"],
            "quotas number": Quota.objects.values_list("pk", flat=True),
            "reservations name": ["course", "demo-day"],
            "schedules number": Schedule.objects.order_by("-pk").values_list("pk", flat=True),
            "services number": InferenceService.objects.order_by("-pk").values_list("pk", flat=True),
            "functions number": DeployedFunction.objects.order_by("-pk").values_list("pk", flat=True),
            "functions call": FunctionCall.objects.order_by("pk").values_list("pk", flat=True),
            "service-accounts name": ["ci@vision"],
            "service-accounts token": Token.objects.filter(user__username="ci@vision").values_list("pk", flat=True),
            "sites name": ["berlin"],
            "simulations number": Simulation.objects.values_list("pk", flat=True),
            "survivors name": [SURVIVOR],
            "templates template": ["ours", "torchrun"],
            "tokens id": Token.objects.filter(user=member).values_list("pk", flat=True),
        }
        return {key: [str(each) for each in values[:6]] for key, values in found.items()}

    def ask(self, name: str, request: requests.PreparedRequest) -> Response:
        """What this person is answered; the request is undone."""
        headers = {
            key: value for key, value in request.headers.items() if key not in {"Content-Type", "Content-Length"}
        }
        began = time.perf_counter()
        with transaction.atomic():
            answer = self.clients[name].generic(
                request.method, request.path_url, request.body or b"", headers=headers,
                content_type=request.headers.get("Content-Type", ""),
            )  # fmt: skip
            # What is streamed to a server's event loop has no end, and has not begun.
            endless = answer.streaming and answer.is_async
            content = b"" if endless else b"".join(answer.streaming_content) if answer.streaming else answer.content
            transaction.set_rollback(True)
        kept = defaultdict(list)
        for key, value in answer.items():
            kept[key].append(value)
        return Response(
            answer.status_code,
            kept,
            content,
            request,
            time.perf_counter() - began,
            verify=False,
            stream_cut_short=endless,
        )


@pytest.fixture(scope="module")
def scene(django_db_setup: None, django_db_blocker: Any) -> Iterator[Scene]:
    with (
        django_db_blocker.unblock(),
        pytest.MonkeyPatch.context() as patch,
        override_settings(RATE_LIMITS=dict.fromkeys(("read", "write", "search", "anonymous"), 10**6)),
        transaction.atomic(),
    ):
        forget(patch)
        yield Scene()
        transaction.set_rollback(True)
    cache.clear()


def places(scene: Scene, operation: Any) -> list[dict[str, str]]:
    """Parameters of the address of an operation, by which it is that of a row that there is."""
    rows = [
        (each.name, scene.rows[f"{operation.path.split('/')[3]} {each.name}"]) for each in operation.path_parameters
    ]
    most = max((len(values) for _name, values in rows), default=1)
    return [{name: values[index % len(values)] for name, values in rows} for index in range(most)]


def placed(case: schemathesis.Case, place: Mapping[str, str]) -> schemathesis.Case:
    """The case at the address of a row."""
    if place:
        case.path_parameters = {**(case.path_parameters or {}), **place}
    return case


def written(case: schemathesis.Case) -> requests.PreparedRequest:
    return requests.Request(**case.as_transport_kwargs(base_url="http://testserver")).prepare()


def judge(scene: Scene, case: schemathesis.Case, people: Iterable[str]) -> Response:
    """Send the case as each of them, hold the answers against the description, and return the last one."""
    request = written(case)
    for name in people:
        answer = scene.ask(name, request)
        try:
            case.validate_response(answer, checks=CHECKS)
        except BaseException as fault:  # a group of failures is no Exception
            fault.add_note(f"asked by: {name}")
            raise
    return answer


def draw(strategy: st.SearchStrategy[Any], count: int, judged: Callable[[Any], object]) -> None:
    """Judge so many examples, the same ones in each run that is not long."""
    some = settings(
        max_examples=count, derandomize=not LONG, database=None, suppress_health_check=list(HealthCheck), deadline=None,
        phases=[Phase.generate, Phase.shrink] if LONG else [Phase.generate],
    )  # fmt: skip

    @some
    @given(strategy)
    def each(example: Any) -> None:
        judged(example)

    each()


@pytest.mark.parametrize("label", OPERATIONS)
def test_everybody_is_answered_as_described(scene: Scene, label: str) -> None:
    operation = OPERATIONS[label]
    there = st.sampled_from(places(scene, operation))
    for mode, count in ((GenerationMode.POSITIVE, 2), (GenerationMode.NEGATIVE, 1)):
        made = operation.as_strategy(generation_mode=mode, feedback=NO_FEEDBACK)
        # What cannot be may also be an address.
        often = st.just(True) if mode is GenerationMode.POSITIVE else st.booleans()
        drawn = st.builds(lambda case, place, is_there: placed(case, place) if is_there else case, made, there, often)
        try:
            draw(drawn, 100 if LONG else count, lambda case: judge(scene, case, PEOPLE))
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "an operation that takes nothing takes nothing wrong"


def test_the_examples_succeed_for_a_superuser(scene: Scene) -> None:
    """Else the test above would see refusals only."""
    never = []
    for label, operation in OPERATIONS.items():
        answers: list[int] = []
        for made in operation.get_strategies_from_examples() or [st.builds(operation.Case)]:

            def tried(case: schemathesis.Case, operation: Any = operation, answers: list[int] = answers) -> None:
                for place in places(scene, operation):
                    if not any(200 <= status < 300 for status in answers):
                        answers.append(judge(scene, placed(case, place), ["superuser"]).status_code)

            draw(made, 1, tried)
        if not any(200 <= status < 300 for status in answers):
            never.append((label, answers))
    assert len(never) <= len(OPERATIONS) - SUCCEED, never
