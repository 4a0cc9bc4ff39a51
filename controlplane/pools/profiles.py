"""The profiles of pools: built-in ones, and custom ones from the database, in versions.

``hybrid`` names a built-in one, ``mine`` the active version of a custom one, and ``mine@3`` its third version.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane import changes
from controlplane.accounts import audit
from controlplane.pools.models import MOST_NAMED, Pool, Profile, ProfileVersion, profile_names
from scheduler import profiles
from scheduler.core.model.profile import Profile as Decider
from scheduler.core.model.types import Pool as Seen
from scheduler.profiles import PROFILES

LARGEST: Final = 16_384
MOST_PROFILES: Final = 200
MOST_VERSIONS: Final = 1_000
LONGEST_NOTE: Final = 200


class ProfileInvalid(ValueError):
    """An operation on a profile is not possible; with the reason as a sentence, and the invalid field."""

    def __init__(self, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.field = field


class InUse(ProfileInvalid):
    """The profile cannot be deleted because a pool uses it."""


class NoPreview(ProfileInvalid):
    """The version cannot be activated because it has no finished preview."""


def spec_of(name: str) -> Mapping[str, Any]:
    """Return the profile of a name as data; raises ``ValueError`` if there is none."""
    if name in PROFILES:
        return PROFILES[name]
    own, at, number = name.partition("@")
    chosen = ProfileVersion.objects.filter(profile__name=own)
    if at:
        chosen = chosen.filter(number=int(number) if number.isdecimal() and len(number) < 9 else -1)
    else:
        chosen = chosen.filter(pk__in=Profile.objects.filter(name=own).values("active"))
    spec: Mapping[str, Any] | None = chosen.values_list("spec", flat=True).first()
    if spec is None:
        known = ", ".join(profile_names()[:MOST_NAMED])
        raise ValueError(_("There is no profile %(name)s; there are %(all)s.") % {"name": name[:60], "all": known})
    return spec


def named(name: str) -> Decider:
    """Return the profile of a name; raises ``ValueError`` if there is none, or none that this engine understands."""
    return profiles.named(name) if name in PROFILES else built(name, spec_of(name))


def built(name: str, spec: Mapping[str, Any]) -> Decider:
    """Build a version of a custom profile; equal ones are built once. Raises ``ValueError`` like
    ``scheduler.profiles.load``."""
    return _built(name, json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=256)
def _built(name: str, text: str) -> Decider:
    return profiles.load(name, json.loads(text), live=True)


def last_good(name: str) -> Decider | None:
    """Return the version of a custom profile that was activated last among those that this engine understands."""
    chosen = ProfileVersion.objects.filter(profile__name=name).exclude(activated_at=None)
    for number, spec in chosen.order_by("-activated_at").values_list("number", "spec"):
        with contextlib.suppress(ValueError):
            return built(f"{name}@{number}", spec)
    return None


def of(pools: Iterable[Seen]) -> dict[str, Decider]:
    """Return the profile of each of these pools, by the pool's name."""
    return {pool.name: named(pool.profile) for pool in pools}


def takes_turns(name: str) -> bool:
    """Whether the stages of a pool with this profile use time sharing; False for an unknown name."""
    try:
        return named(name).rotates != "none"
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ProfileUsers:
    """The pools that use a profile, and those that run it as a shadow; by name."""

    pools: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pools or self.beside)


def users() -> Mapping[str, ProfileUsers]:
    """Return the users of each profile, by its name; unused profiles are left out."""
    found: defaultdict[str, ProfileUsers] = defaultdict(ProfileUsers)
    for pool, profile, shadow in Pool.objects.order_by("name").values_list("name", "profile", "shadow_profile"):
        found[profile].pools.append(pool)
        if shadow:
            found[shadow].beside.append(pool)
    return found


def check(name: str, spec: Any) -> None:
    """Validate a profile before it is stored. Raises :class:`ProfileInvalid` with the field and what it accepts."""
    versions = ProfileVersion.objects.filter(profile__name=name).count()
    if versions >= MOST_VERSIONS:
        raise ProfileInvalid(
            _("it has %(most)d versions; copy it under another name") % {"most": MOST_VERSIONS}, "spec"
        )
    if not versions and Profile.objects.count() >= MOST_PROFILES:
        raise ProfileInvalid(
            _("there are %(most)d profiles already; delete one first") % {"most": MOST_PROFILES}, "name"
        )
    if len(json.dumps(spec)) > LARGEST:
        raise ProfileInvalid(_("a profile may be %(most)d bytes of JSON at most") % {"most": LARGEST}, "spec")
    _understood(name, spec)


def _understood(name: str, spec: Any) -> None:
    try:
        profiles.load(name, spec, live=True)
    except ValueError as error:
        raise ProfileInvalid(error.args[0], "spec") from None


@transaction.atomic
def create(name: str, spec: Any, *, by: str, description: str = "", note: str = "") -> Profile:
    """Create a profile with its first version, which is not active yet."""
    row = Profile(name=name, description=description)
    _clean(row)
    check(name, spec)
    row.save()
    _version(row, spec, by, note)
    audit.record("profile.create", row, after={"spec": spec, "description": description}, reason=note)
    return row


@transaction.atomic
def revise(profile: Profile, spec: Any, *, by: str, note: str = "") -> ProfileVersion:
    """Add a version, which is not active yet."""
    check(profile.name, spec)
    Profile.objects.select_for_update().get(pk=profile.pk)
    before = profile.versions.first()
    version = _version(profile, spec, by, note)
    told = {"version": version.number, "spec": spec}
    was = {"version": before.number, "spec": before.spec} if before else {}
    audit.record("profile.revise", profile, before=was, after=told, reason=note)
    return version


def _version(profile: Profile, spec: Any, by: str, note: str) -> ProfileVersion:
    if len(note) > LONGEST_NOTE:
        raise ProfileInvalid(_("must have at most {most} characters").format(most=LONGEST_NOTE), "note")
    newest = profile.versions.aggregate(newest=Max("number"))["newest"] or 0
    _announce()
    return ProfileVersion.objects.create(profile=profile, number=newest + 1, spec=spec, made_by=by[:150], note=note)


def is_seen(version: ProfileVersion) -> bool:
    """Whether it has a finished preview, or was active before."""
    return version.activated_at is not None or (version.preview is not None and version.preview.phase == "DONE")


@transaction.atomic
def activate(version: ProfileVersion, *, by: str, unseen: bool = False) -> None:
    """Activate this version in all pools of the profile from the next cycle on. Raises :class:`NoPreview` without a
    finished preview, unless ``unseen``."""
    if not (unseen or is_seen(version)):
        raise NoPreview(
            _("version %(number)d was not previewed; preview it, or switch it on unseen") % {"number": version.number}
        )
    _understood(version.profile.name, version.spec)
    ProfileVersion.objects.filter(pk=version.pk).update(activated_by=by[:150], activated_at=timezone.now())
    was = version.profile.active.number if version.profile.active else None
    Profile.objects.filter(pk=version.profile_id).update(active=version)
    after = {"active": version.number, "unseen": unseen}
    audit.record("profile.activate", version.profile, before={"active": was}, after=after)
    _announce()
    transaction.on_commit(changes.wake)


@transaction.atomic
def delete(profile: Profile) -> None:
    """Delete it with its versions; raises :class:`InUse` while a pool uses it."""
    if held := users().get(profile.name):
        pools = sorted({*held.pools, *held.beside})
        raise InUse(
            _("%(name)s is the profile of %(pools)s; give them another first")
            % {"name": profile.name, "pools": ", ".join(pools[:20])}
        )
    newest = profile.versions.first()
    told = {"description": profile.description, "spec": newest.spec if newest else None}
    audit.record("profile.delete", profile, before=told)
    profile.delete()
    _announce()


@transaction.atomic
def assign(pool: Pool, *, profile: str | None = None, shadow: str | None = None) -> None:
    """Set the profile or the shadow profile (empty: none) of a pool, from the next cycle on."""
    changed = {"profile": profile, "shadow_profile": shadow}
    wanted = {column: name for column, name in changed.items() if name is not None}
    before = audit.fields(pool, *wanted)
    for column, name in wanted.items():
        setattr(pool, column, name)
    _clean(pool)
    pool.save(update_fields=list(wanted))
    audit.record("pool.profile", pool, before=before, after=wanted)
    _announce()
    transaction.on_commit(changes.wake)


def _clean(row: Profile | Pool) -> None:
    """Raise :class:`ProfileInvalid` for the first field that the model does not accept."""
    try:
        row.full_clean()
    except ValidationError as error:
        at, sentences = next(iter(error.message_dict.items()))
        raise ProfileInvalid(sentences[0], at) from None


def _announce() -> None:
    transaction.on_commit(lambda: changes.announce("profiles"))
