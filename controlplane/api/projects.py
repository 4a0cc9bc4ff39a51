"""Projects that the asking user may know of, with their members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access import models as rows
from controlplane.access import permissions
from controlplane.access.models import User
from controlplane.api.problem import Problem, not_found
from controlplane.api.resource import Resource, signed_in


class ProjectMember(msgspec.Struct, frozen=True):
    """A person's role in a project: viewer, member or lead."""

    user: str
    role: str


class Project(msgspec.Struct, frozen=True):
    """The tenant that owns jobs, quota and fair share. ``role`` is yours in it, if you have one."""

    name: str
    weight: float
    description: str
    role: str | None
    members: list[ProjectMember]


class ProjectList(msgspec.Struct, frozen=True):
    """The projects that you may know of, by name."""

    results: list[Project]


def _shown(projects: Iterable[rows.Project], user: User) -> list[Project]:
    projects = list(projects)
    members: dict[object, list[rows.Member]] = defaultdict(list)
    for member in rows.Member.objects.filter(project__in=projects).select_related("user").order_by("user__username"):
        members[member.project_id].append(member)
    return [
        Project(
            name=project.name,
            weight=project.weight,
            description=project.description,
            role=next((member.role for member in members[project.id] if member.user_id == user.pk), None),
            members=[ProjectMember(member.user.get_username(), member.role) for member in members[project.id]],
        )
        for project in projects
    ]


class Projects(Resource):
    """The list of projects."""

    @extend_schema(operation_id="projects_list", responses={200: ProjectList})
    def get(self, request: Request) -> Response:
        """The projects that you may know of."""
        user = signed_in(request)
        return Response(ProjectList(_shown(permissions.visible_projects(user).order_by("name"), user)))


class OneProject(Resource):
    """One project."""

    @extend_schema(operation_id="projects_get", responses={200: Project, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A project by its name."""
        user = signed_in(request)
        found = _shown(permissions.visible_projects(user).filter(name=name), user)
        if not found:
            raise not_found(f"project {name[:63]}")
        return Response(found[0])
