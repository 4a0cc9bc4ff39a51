"""Replays decisions: the same world, profiles and code give the same plan, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scheduler import profiles
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Plan
from scheduler.core.planning import engine
from scheduler.decisions import canonical, code
from scheduler.decisions.log import Record


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed decision. ``same`` compares bytes; ``same_code`` tells whether the engine's version is the recorded
    one: with another, a difference is no fault."""

    record: Record
    plan: Plan
    same: bool
    same_code: bool


def profiles_of(record: Record) -> dict[str, Profile]:
    """Return the profile of each pool as recorded."""
    built: dict[str, Profile] = {}
    for name in set(record.profiles.values()):
        spec = record.specs.get(name)
        built[name] = profiles.named(name) if spec is None else profiles.load(name, spec)
    return {pool: built[name] for pool, name in record.profiles.items()}


def replay(record: Record) -> Replay:
    """Plan again from the record alone. If the recorded plan has only some waiting stages, so has this one."""
    plan = engine.plan(record.snapshot, profiles_of(record), record.at)
    if record.partial:
        plan = with_waits_of(plan, record.plan)
    return Replay(record, plan, canonical.digest(plan) == record.digest, record.code == code.version())


def with_waits_of(plan: Plan, other: Plan) -> Plan:
    """Return the plan with only those waits that the other one has too."""
    names = {wait.stage for wait in other.waits}
    return replace(plan, waits=tuple(wait for wait in plan.waits if wait.stage in names))


def under(record: Record, chosen: Profile | Mapping[str, Profile]) -> Plan:
    """Return the plan of another profile for the same world."""
    return engine.plan(record.snapshot, chosen, record.at)


def specs_of(names: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the profiles of these names as data, if they are built in."""
    return {name: dict(profiles.PROFILES[name]) for name in set(names.values()) if name in profiles.PROFILES}
