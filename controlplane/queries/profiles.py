"""Profiles: built-in ones, and custom ones in versions that are previewed before they are activated."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Max
from django.utils.translation import gettext as _

from controlplane.pools import models as rows
from controlplane.pools import profiles
from controlplane.queries.refusals import Unseen
from scheduler.profiles import DEFAULT, PROFILES


class ProfileVersion(msgspec.Struct, frozen=True):
    """One version of a custom profile. ``preview`` is the simulation of its effect, ``preview_phase`` the state of
    that; null and empty if there was none."""

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
    """A named set of policies. A built-in one (``builtin``) has no versions and changes only with the release.
    ``active`` is the number of the version that pools run; ``pools`` are those that use it, ``beside`` those that run
    it as a shadow."""

    name: str
    description: str
    builtin: bool
    active: int | None
    newest: int | None
    pools: list[str]
    beside: list[str]


class ProfileList(msgspec.Struct, frozen=True):
    """Built-in profiles, then custom ones by name. ``default`` is that of a new pool."""

    results: list[Profile]
    default: str


class ProfileDetail(msgspec.Struct, frozen=True):
    """A profile with its policies: ``spec`` is the active version, or the newest if none is active. ``versions`` has
    the newest fifty, newest first."""

    profile: Profile
    spec: dict[str, Any]
    versions: list[ProfileVersion]


MOST_SHOWN = 50


def all_profiles() -> ProfileList:
    """All profiles."""
    own, held = rows.Profile.objects.select_related("active").defer("active__spec"), profiles.users()
    own = own.annotate(newest=Max("versions__number")).order_by("name")
    found = [_builtin(name, held.get(name)) for name in PROFILES]
    found += [_shown(row, row.newest, held.get(row.name)) for row in own]
    return ProfileList(found, DEFAULT)


def own(name: str) -> rows.Profile:
    """The custom profile with this name; raises 404."""
    row = rows.Profile.objects.filter(name=name[:63]).first()
    if row is None:
        raise Unseen(_("profile {name}").format(name=name[:63]))
    return row


def _builtin(name: str, held: profiles.ProfileUsers | None) -> Profile:
    held = held or profiles.ProfileUsers()
    return Profile(name, "", builtin=True, active=None, newest=None, pools=held.pools, beside=held.beside)


def _shown(row: rows.Profile, newest: int, held: profiles.ProfileUsers | None) -> Profile:
    held = held or profiles.ProfileUsers()
    active = row.active.number if row.active else None
    return Profile(
        row.name, row.description, builtin=False, active=active, newest=newest, pools=held.pools, beside=held.beside
    )


def detail(name: str) -> ProfileDetail:
    """This profile with its policies and its newest versions; raises 404."""
    held = profiles.users().get(name)
    if name in PROFILES:
        return ProfileDetail(_builtin(name, held), msgspec.to_builtins(PROFILES[name]), [])
    row = own(name)
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
