"""Profiles: built-in ones, and custom ones in versions that are previewed before they are activated."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import changes
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import ReadModelSerializer, StrictSerializer
from controlplane.api.simulations import SimulationSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.queries import profiles as shown
from controlplane.queries import simulations
from controlplane.queries.refusals import Unseen
from controlplane.simulations import preview as previews
from scheduler.profiles import PROFILES


class ProfileDetailSerializer(ReadModelSerializer):
    class Meta:
        model = shown.ProfileDetail


class ProfileAskedSerializer(StrictSerializer):
    """A new profile: given by ``spec`` (policies with their parameters and weights, and settings), or a copy of another
    one (``copy_of``: a name, or name@number)."""

    name = serializers.CharField(allow_blank=True)
    description = serializers.CharField(default="", allow_blank=True)
    spec = serializers.DictField(default=None, allow_null=True)
    copy_of = serializers.CharField(default="", allow_blank=True)
    note = serializers.CharField(default="", allow_blank=True)


class ProfileSettingsSerializer(editing.EditSerializer):
    """What may change of a custom profile; its policies change by another version."""

    class Meta:
        model = rows.Profile
        fields = ["description"]


class VersionAskedSerializer(StrictSerializer):
    """A new version."""

    spec = serializers.DictField()
    note = serializers.CharField(default="", allow_blank=True)


class PreviewAskedSerializer(StrictSerializer):
    """A preview: the days of a pool to simulate, and the other profile; empty for the pool's own one."""

    pool = serializers.CharField(allow_blank=True)
    days = serializers.FloatField(default=7.0)
    against = serializers.CharField(default="", allow_blank=True)


class ActivationAskedSerializer(StrictSerializer):
    """The version to activate; ``unseen`` to allow one without a finished preview."""

    version = serializers.IntegerField(min_value=-(2**63), max_value=2**63 - 1)
    unseen = serializers.BooleanField(default=False)


COPY = OpenApiExample("A copy", {"name": "night", "copy_of": "hybrid"}, request_only=True)
REVISED = OpenApiExample("Another weight", {"spec": {"policies": {"fifo": {}}}, "note": "plain"}, request_only=True)
WEEK = OpenApiExample("A week", {"pool": "default", "days": 7}, request_only=True)
FIRST = OpenApiExample("The first one", {"version": 1, "unseen": True}, request_only=True)


class ProfileViewSet(ResourceViewSet):
    """Profiles, by name."""

    scope = "admin"
    permits = {
        "create": (Permit.ADD_PROFILES, gettext_noop("make a profile")),
        "versions": (Permit.CHANGE_PROFILES, gettext_noop("change a profile")),
        "partial_update": (Permit.CHANGE_PROFILES, gettext_noop("change a profile")),
        "preview": (Permit.CHANGE_PROFILES, gettext_noop("preview a profile")),
        "activate": (Permit.CHANGE_PROFILES, gettext_noop("activate a profile")),
        "remove": (Permit.DELETE_PROFILES, gettext_noop("delete a profile")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    examples = {"name": "hybrid", "number": "1"}
    queryset = rows.Profile.objects.all()
    serializer_class = ProfileDetailSerializer
    pagination_class = None

    def get_object(self) -> rows.Profile:
        name = self.kwargs["name"]
        if name in PROFILES:
            detail = _("The profile %(name)s comes along and stays as it is; copy it under another name.")
            raise RequestRefused(409, "builtin_profile", detail % {"name": name})
        return shown.own(name)

    @extend_schema(operation_id="profiles_list", responses={200: shown.ProfileList})
    def list(self, request: Request) -> Response:
        """All profiles."""
        return Response(shown.all_profiles())

    @extend_schema(request=ProfileAskedSerializer, responses={201: shown.ProfileDetail}, examples=[COPY])
    def create(self, request: Request) -> Response:
        """Creates a profile with its first version, which takes effect when it is activated. Only staff."""
        body = self.body(ProfileAskedSerializer)
        copy_of, spec = body.pop("copy_of"), body.pop("spec")
        if (spec is None) == (not copy_of):
            raise profiles.ProfileInvalid(_("give one of spec and copy_of"), "spec")
        spec = spec if spec is not None else _spec_of(copy_of)
        made = profiles.create(body.pop("name"), spec, by=self.user.get_username(), **body)
        return Response(shown.detail(made.name), status=201)

    def retrieve(self, request: Request, name: str) -> Response:
        """A profile as data, with its versions."""
        return Response(shown.detail(name))

    @extend_schema(operation_id="profiles_settings", responses={200: ProfileSettingsSerializer})
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What may change of a profile; its ETag is what a change needs. Of a built-in one nothing may change."""
        row = rows.Profile(name=name) if name in PROFILES else shown.own(name)
        return Response(editing.settings_of(row, ProfileSettingsSerializer))

    @extend_schema(
        operation_id="profiles_change",
        request=ProfileSettingsSerializer,
        responses={200: shown.ProfileDetail},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("What it is for", {"description": "Long jobs at night"}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes the description of a custom profile, with ``If-Match`` of its settings as they were read. Only
        staff."""
        editing.change(request, self.get_object(), ProfileSettingsSerializer)
        changes.announce("profiles")
        return Response(shown.detail(name))

    @extend_schema(
        operation_id="profiles_revise",
        request=VersionAskedSerializer,
        responses={201: shown.ProfileDetail},
        examples=[REVISED],
    )
    @action(detail=True, methods=["post"])
    def versions(self, request: Request, name: str) -> Response:
        """Adds a version, which takes effect when it is activated. Only staff."""
        body, row = self.body(VersionAskedSerializer), self.get_object()
        profiles.revise(row, body["spec"], by=self.user.get_username(), note=body["note"])
        return Response(shown.detail(name), status=201)

    @extend_schema(request=PreviewAskedSerializer, responses={201: SimulationSerializer}, examples=[WEEK])
    @action(detail=True, methods=["post"], url_path="versions/<int:number>/preview")
    def preview(self, request: Request, name: str, number: int) -> Response:
        """Starts a simulation of stages that finished lately in a pool, under this version and under the pool's present
        profile. Only staff."""
        body, version = self.body(PreviewAskedSerializer), _version(self.get_object(), number)
        pool = rows.Pool.objects.filter(name=body["pool"]).first()
        if pool is None:
            raise profiles.ProfileInvalid(_("there is no pool {name}").format(name=body["pool"][:63]), "pool")
        row = previews.begin(version, self.user, pool=pool, days=body["days"], against=body["against"])
        return Response(simulations.shown([row])[0], status=201)

    @extend_schema(request=ActivationAskedSerializer, examples=[FIRST])
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, name: str) -> Response:
        """Activates this version in all pools of the profile from the next cycle on; without a finished preview only
        with ``unseen``. Only staff."""
        body = self.body(ActivationAskedSerializer)
        version = _version(self.get_object(), body["version"])
        profiles.activate(version, by=self.user.get_username(), unseen=body["unseen"])
        return Response(shown.detail(name))

    @extend_schema(operation_id="profiles_delete", request=None, responses={204: None})
    @action(detail=True, methods=["post"], url_path="delete")
    def remove(self, request: Request, name: str) -> Response:
        """Deletes a profile with its versions, unless a pool uses it. Only staff."""
        profiles.delete(self.get_object())
        return Response(None, status=204)


def _version(profile: rows.Profile, number: int) -> rows.ProfileVersion:
    row = profile.versions.select_related("profile__active", "preview").filter(number=min(number, 2**31 - 1)).first()
    if row is None:
        raise Unseen(_("version {number} of profile {name}").format(number=number, name=profile.name))
    return row


def _spec_of(name: str) -> dict[str, Any]:
    try:
        return dict(profiles.spec_of(name))
    except ValueError as error:
        raise profiles.ProfileInvalid(str(error), "copy_of") from None
