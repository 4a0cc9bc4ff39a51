"""A cluster with an owner, a team mate, a lead, a viewer, a stranger, staff, and somebody who is not signed in."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from django.test import Client

from controlplane.accounts import service
from controlplane.accounts.models import Member, Project, User
from controlplane.jobs.models import Job, Part
from tests.record.yard import Agent, Yard, cpu, gpu

PEOPLE = {"owner": "member", "mate": "member", "lead": "lead", "viewer": "viewer"}


class Person:
    """Somebody with an access token of their own; ``anonymous`` has none."""

    def __init__(self, user: User | None, *scopes: str) -> None:
        self.user = user
        self.client = Client()
        if user is not None:
            _, secret = service.make_token(user, "test", scopes=scopes or service.SCOPES)
            self.client = Client(headers={"authorization": f"Bearer {secret}"})

    def get(self, path: str, **headers: str) -> HttpResponse:
        return self.client.get(f"/api/v1{path}", headers=headers)

    def post(self, path: str, body: Any = None, *, kind: str = "application/json", **headers: str) -> HttpResponse:
        content = body if isinstance(body, str | bytes) else json.dumps({} if body is None else body)
        return self.client.post(f"/api/v1{path}", content, content_type=kind, headers=headers)

    def patch(
        self, path: str, body: Any, *, kind: str = "application/merge-patch+json", **headers: str
    ) -> HttpResponse:
        return self.client.patch(f"/api/v1{path}", json.dumps(body), content_type=kind, headers=headers)

    def read(self, path: str) -> Any:
        """The JSON of a GET that must succeed."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.content
        return json.loads(answer.content)


class Town(Yard):
    """The yard of the record's tests with people in it. The project ``default`` is theirs, ``other`` the stranger's."""

    def __init__(self) -> None:
        super().__init__()
        other = Project.objects.create(name="other")
        for name, role in PEOPLE.items():
            user = User.objects.create(username=name, default_project=self.project)
            Member.objects.create(project=self.project, user=user, role=role)
            setattr(self, name, Person(user))
        stranger = User.objects.create(username="stranger", default_project=other)
        Member.objects.create(project=other, user=stranger, role="lead")
        self.stranger, self.staff, self.anonymous = Person(stranger), Person(self.user), Person(None)

    owner: Person
    mate: Person
    lead: Person
    viewer: Person

    def machine(self, name: str = "n1") -> Agent:
        """A node with a CPU of eight cores and two GPUs."""
        return self.agent(name, cpu(name, cores=8, memory_gib=64), gpu(name, 0), gpu(name, 1))

    def job(self, **spec: Any) -> Job:
        """A job of the owner."""
        answer = self.owner.post("/jobs", {"name": "job", "run": "true", **spec})
        assert answer.status_code == 201, answer.content
        return Job.objects.get(number=json.loads(answer.content)["number"])

    def running(self, agent: Agent, **spec: Any) -> Job:
        """A job of the owner whose first stages run on the machine."""
        job = self.job(**spec)
        self.cycle()
        agent.start()
        job.refresh_from_db()
        return job


def write_log(job: Job, *chunks: tuple[str, bytes], stage: str | None = None) -> None:
    """Appends chunks to the log of the newest attempt, as the agent's upload does."""
    from controlplane.jobs import logs

    parts = Part.objects.filter(attempt__stage__job=job, rank=0)
    part = parts.filter(**({"attempt__stage__name": stage} if stage else {})).latest("attempt__created_at")
    for stream, content in chunks:
        logs.append([logs.Piece(part.id, stream, logs.size(part, stream), content)])
