"""Decides once more: the same world, the same profiles and the same code give the same plan, byte for byte."""

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
    """A decision that was taken once more. ``same`` compares bytes; ``same_code`` tells whether the engine is the one
    that decided then: with another, a difference is no fault."""

    record: Record
    plan: Plan
    same: bool
    same_code: bool


def profiles_of(record: Record) -> dict[str, Profile]:
    """The profile of each pool as it was then."""
    built: dict[str, Profile] = {}
    for name in set(record.profiles.values()):
        spec = record.specs.get(name)
        built[name] = profiles.named(name) if spec is None else profiles.load(name, spec)
    return {pool: built[name] for pool, name in record.profiles.items()}


def replay(record: Record) -> Replay:
    """Plans again from what the record holds, and from nothing else. Of a cycle that put some of those who wait into
    words the plan has these."""
    plan = engine.plan(record.snapshot, profiles_of(record), record.at)
    if record.partial:
        plan = told(plan, record.plan)
    return Replay(record, plan, canonical.digest(plan) == record.digest, record.code == code.version())


def told(plan: Plan, other: Plan) -> Plan:
    """The plan with only those waits that the other one names too."""
    names = {wait.stage for wait in other.waits}
    return replace(plan, waits=tuple(wait for wait in plan.waits if wait.stage in names))


def under(record: Record, chosen: Profile | Mapping[str, Profile]) -> Plan:
    """What another profile would have decided on the same world."""
    return engine.plan(record.snapshot, chosen, record.at)


def specs_of(names: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The profiles behind these names as data, as far as they are data."""
    return {name: dict(profiles.PROFILES[name]) for name in set(names.values()) if name in profiles.PROFILES}
