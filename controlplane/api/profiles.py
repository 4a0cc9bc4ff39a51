"""Profiles: those that come along, and own ones in versions that are previewed before they are switched on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Max
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.idempotency import idempotent
from controlplane.api.jobs import KEY
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, permitted, taken
from controlplane.api.simulations import Simulation
from controlplane.api.simulations import shown as simulated
from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.simulations import preview
from scheduler.profiles import DEFAULT, PROFILES


class ProfileVersion(msgspec.Struct, frozen=True):
    """One state of an own profile. ``preview`` is the simulation that showed what it does, ``preview_phase`` how far
    that is; null and empty where there was none."""

    number: int
    spec: dict[str, Any]
    note: str
    made_by: str
    made_at: datetime
    preview: int | None
    preview_phase: str
    activated_by: str
    activated_at: datetime | None


class Profile(msgspec.Struct, frozen=True):
    """A named way to decide. One that comes along (``builtin``) has no versions and never changes but with the program.
    ``active`` is the number of the version that pools run; ``pools`` are those that have it, ``beside`` those that let
    it think beside theirs."""

    name: str
    description: str
    builtin: bool
    active: int | None
    newest: int | None
    pools: list[str]
    beside: list[str]


class ProfileList(msgspec.Struct, frozen=True):
    """Those that come along, then own ones by name. ``default`` is what a new pool has."""

    results: list[Profile]
    default: str


class ProfileDetail(msgspec.Struct, frozen=True):
    """A profile with what decides: ``spec`` is the active version, or the newest where none is. ``versions`` has the
    newest fifty, the newest first."""

    profile: Profile
    spec: dict[str, Any]
    versions: list[ProfileVersion]


class ProfileAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new profile: as ``spec`` says (policies with their parameters and weights, and settings), or a copy of another
    one (``copy_of``: a name, or name@number)."""

    name: str
    description: str = ""
    spec: dict[str, Any] | None = None
    copy_of: str = ""
    note: str = ""


class VersionAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new version."""

    spec: dict[str, Any]
    note: str = ""


class PreviewAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which days of which pool to live through, and beside which other profile: empty for what decides there."""

    pool: str
    days: float = 7.0
    against: str = ""


class ActivationAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which version is to decide; ``unseen`` where no preview is wanted first."""

    version: int
    unseen: bool = False


MOST_SHOWN = 50


class Profiles(Resource):
    """The list of profiles."""

    scope = "admin"

    @extend_schema(operation_id="profiles_list", responses={200: ProfileList})
    def get(self, request: Request) -> Response:
        """All profiles that there are."""
        own, held = rows.Profile.objects.select_related("active").defer("active__spec"), profiles.users()
        own = own.annotate(newest=Max("versions__number")).order_by("name")
        found = [_builtin(name, held.get(name)) for name in PROFILES]
        found += [_shown(row, row.newest, held.get(row.name)) for row in own]
        return Response(ProfileList(found, DEFAULT))

    @extend_schema(
        operation_id="profiles_create",
        request=ProfileAsked,
        responses={201: ProfileDetail, 403: Problem, 422: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Makes a profile with its first version, which decides nowhere until it is activated. Only staff."""
        user = permitted(request, Permit.ADD_PROFILES, _("make a profile"))
        body = taken(request, ProfileAsked)
        if (body.spec is None) == (not body.copy_of):
            raise profiles.ProfileInvalid(_("give one of spec and copy_of"), "spec")
        spec = body.spec if body.spec is not None else _spec_of(body.copy_of)
        made = profiles.create(body.name, spec, by=user.get_username(), description=body.description, note=body.note)
        return Response(_detail(made.name), status=201)


class OneProfile(Resource):
    """One profile."""

    @extend_schema(operation_id="profiles_get", responses={200: ProfileDetail, 404: Problem})
    def get(self, request: Request, name: str) -> Response:
        """A profile as data, with its versions."""
        return Response(_detail(name))


class ProfileVersions(Resource):
    """New versions of a profile."""

    scope = "admin"

    @extend_schema(
        operation_id="profiles_revise",
        request=VersionAsked,
        responses={201: ProfileDetail, 403: Problem, 404: Problem, 422: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Writes a new version, which decides nowhere until it is activated. Only staff."""
        user = permitted(request, Permit.CHANGE_PROFILES, _("change a profile"))
        body, row = taken(request, VersionAsked), _own(name)
        profiles.revise(row, body.spec, by=user.get_username(), note=body.note)
        return Response(_detail(name), status=201)


class ProfilePreview(Resource):
    """What a version would do."""

    scope = "admin"

    @extend_schema(
        operation_id="profiles_preview",
        request=PreviewAsked,
        responses={201: Simulation, 403: Problem, 404: Problem, 422: Problem, 429: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, name: str, number: int) -> Response:
        """Begins a simulation of what finished of late in a pool, under this version and under what decides there now.
        Only staff."""
        user = permitted(request, Permit.CHANGE_PROFILES, _("preview a profile"))
        body, version = taken(request, PreviewAsked), _version(_own(name), number)
        pool = rows.Pool.objects.filter(name=body.pool).first()
        if pool is None:
            raise profiles.ProfileInvalid(_("there is no pool {name}").format(name=body.pool[:63]), "pool")
        row = preview.begin(version, user, pool=pool, days=body.days, against=body.against)
        return Response(simulated(row), status=201)


class ProfileActivation(Resource):
    """Which version decides."""

    scope = "admin"

    @extend_schema(
        operation_id="profiles_activate",
        request=ActivationAsked,
        responses={200: ProfileDetail, 403: Problem, 404: Problem, 409: Problem, 422: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Lets all pools of the profile decide by this version from the next cycle on; one that no finished preview has
        shown only if ``unseen`` says that this is wanted. Only staff."""
        user = permitted(request, Permit.CHANGE_PROFILES, _("activate a profile"))
        body = taken(request, ActivationAsked)
        version = _version(_own(name), body.version)
        profiles.activate(version, by=user.get_username(), unseen=body.unseen)
        return Response(_detail(name))


class ProfileDeletion(Resource):
    """The end of a profile."""

    scope = "admin"

    @extend_schema(
        operation_id="profiles_delete",
        request=None,
        responses={204: None, 403: Problem, 404: Problem, 409: Problem},
        parameters=[KEY],
    )
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Deletes a profile with its versions; one that a pool has stays. Only staff."""
        permitted(request, Permit.DELETE_PROFILES, _("delete a profile"))
        profiles.delete(_own(name))
        return Response(None, status=204)


def _own(name: str) -> rows.Profile:
    if name in PROFILES:
        raise Refused(
            409,
            "builtin_profile",
            _("The profile %(name)s comes along and stays as it is; copy it under another name.") % {"name": name},
        )
    row = rows.Profile.objects.filter(name=name[:63]).first()
    if row is None:
        raise not_found(_("profile {name}").format(name=name[:63]))
    return row


def _version(profile: rows.Profile, number: int) -> rows.ProfileVersion:
    row = profile.versions.select_related("profile__active", "preview").filter(number=min(number, 2**31 - 1)).first()
    if row is None:
        raise not_found(_("version {number} of profile {name}").format(number=number, name=profile.name))
    return row


def _spec_of(name: str) -> dict[str, Any]:
    try:
        return dict(profiles.spec_of(name))
    except ValueError as error:
        raise profiles.ProfileInvalid(str(error), "copy_of") from None


def _builtin(name: str, held: profiles.Users | None) -> Profile:
    held = held or profiles.Users()
    return Profile(name, "", builtin=True, active=None, newest=None, pools=held.pools, beside=held.beside)


def _shown(row: rows.Profile, newest: int, held: profiles.Users | None) -> Profile:
    held = held or profiles.Users()
    active = row.active.number if row.active else None
    return Profile(
        row.name, row.description, builtin=False, active=active, newest=newest, pools=held.pools, beside=held.beside
    )


def _detail(name: str) -> ProfileDetail:
    held = profiles.users().get(name)
    if name in PROFILES:
        return ProfileDetail(_builtin(name, held), msgspec.to_builtins(PROFILES[name]), [])
    row = _own(name)
    versions = list(row.versions.select_related("preview")[:MOST_SHOWN])
    decides = row.active or versions[0]
    return ProfileDetail(
        _shown(row, versions[0].number, held),
        decides.spec,
        [
            ProfileVersion(
                number=one.number,
                spec=one.spec,
                note=one.note,
                made_by=one.made_by,
                made_at=one.made_at,
                preview=one.preview_id,
                preview_phase=one.preview.phase if one.preview else "",
                activated_by=one.activated_by,
                activated_at=one.activated_at,
            )
            for one in versions
        ],
    )
