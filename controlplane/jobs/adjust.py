"""Adjusts the shares of a running attempt's parts in place: its processes go on under the same pid.

An adjustment is a new revision of the parts. It opens and closes no claim: cores beyond the claims are a loan, which
lasts until a later revision ends it. A stage becomes SUSPENDED when all of its parts are suspended, and RUNNING again
when the first of them resumes; no other state changes. The agent applies a revision within two seconds and reports what
it could not apply.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import Phase, Share
from controlplane import changes
from controlplane.accounts import audit
from controlplane.clauses import Told, clause, joined, told
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Part
from controlplane.jobs.service import Note
from controlplane.jobs.values import listed, nearest
from scheduler.core.model.lifecycle import StageEvent as What
from scheduler.core.model.lifecycle import State
from scheduler.core.world import price

LEAST_MEMORY_BYTES: Final = 1 << 20
# The disk I/O weight of a stage that reports no phase (see ``agents.protocol.Share``).
USUAL_WEIGHT: Final = 100
_FIELDS: Final = tuple(sorted(Share.__struct_fields__))
_WHOLE: Final = {
    "cpus_milli": (10, 4_096_000),
    "cpu_weight": (1, 10_000),
    "io_weight": (1, 10_000),
    "memory_bytes": (LEAST_MEMORY_BYTES, 1 << 60),
}
_SHORTEST_S, _LONGEST_S = 0.05, 60.0
_CLASSES: Final = ("short", "long")


class Unadjustable(ValueError):
    """Raised when an attempt cannot be adjusted in place; the text says why, and what would be accepted.

    ``field`` is the invalid field of the request. It is empty if the attempt itself can no longer be adjusted.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


def adjust(
    attempt_id: uuid.UUID, actor: str, *, reason: str = "", ranks: Iterable[int] | None = None, **given: Any
) -> int:
    """Give the live parts of an attempt a new revision, or only those of ``ranks`` if given.

    ``given`` has fields of :class:`agents.protocol.Share`. Fields that are left out keep the value of the previous
    revision; ``None`` resets a field to its value at the start of the part. Returns the number of changed parts; a
    revision that would change nothing is not made. Raises Unadjustable.
    """
    check(given)
    with transaction.atomic():
        job_id = Attempt.objects.values_list("stage__job_id", flat=True).get(id=attempt_id)
        job = service.lock([job_id])[job_id]
        attempt = Attempt.objects.select_related("stage").get(id=attempt_id)
        if attempt.ended_at is not None or attempt.stop_why:
            text = _("{stage} attempt {n} has ended; only an attempt that runs, or is about to, can be adjusted")
            if not attempt.ended_at:
                text = _(
                    "{stage} attempt {n} was asked to stop ({why}); only an attempt that runs, or is about to, can be "
                    "adjusted"
                )
            raise Unadjustable(text.format(stage=attempt.stage, n=attempt.number, why=attempt.stop_why))
        live = list(attempt.parts.filter(ended_at=None, phase__lt=Phase.STOPPING))
        changed = [part for part in _chosen(live, ranks) if _revise(part, given)]
        if not changed:
            return 0
        service.touch_nodes(part.node_id for part in changed)
        Part.objects.bulk_update(changed, ["spec_rev", "share"])
        stage = attempt.stage
        said = [clause("Adjusted", stage=stage.name, changes=_spoken(given))]
        if reason:
            said.append(clause("Aside", why=reason))
        params = {"share": given, "parts": len(changed)}
        facts = [Note(job, "adjusted", told(*said), actor, stage.name, attempt.number, params)]
        follow([attempt], {attempt.id: live})
        service.settle([job], facts, timezone.now(), [stage])
        named = ("attempt", attempt.id, f"#{job.number}/{stage.name} attempt {attempt.number}")
        audit.record("attempt.adjust", named, after={**given, "parts": len(changed)}, reason=reason)
        transaction.on_commit(lambda: changes.announce("jobs", f"job:{job.number}"))
    return len(changed)


def follow(attempts: Sequence[Attempt], parts: Mapping[uuid.UUID, Sequence[Part]]) -> None:
    """Move the stages of these attempts to SUSPENDED, or back, as their live parts are.

    Their jobs must be locked.
    """
    moves: dict[What, list[Any]] = {What.SUSPEND: [], What.RESUME: []}
    for attempt in attempts:
        live = [part for part in parts[attempt.id] if part.ended_at is None]
        suspended = bool(live) and all((part.share or {}).get("suspended") for part in live)
        state = State(attempt.stage.state)
        if suspended and state == State.RUNNING:
            moves[What.SUSPEND].append(attempt.stage)
        elif not suspended and state == State.SUSPENDED:
            moves[What.RESUME].append(attempt.stage)
    for what, stages in moves.items():
        service.move(stages, what)


def weight(priority: int) -> int:
    """Return the CPU weight of a priority: its share of contended cores relative to other stages."""
    return min(max(round(100 * price.weight(priority)), 10), 1000)


def beyond(attempt: Attempt, given: Mapping[str, Any]) -> str:
    """Return the first field that asks for more than the job file did, or for an advantage over others; else empty.

    Whoever may cancel a job may reduce what it gets. An increase affects other jobs, and needs more rights.
    """
    asked = attempt.stage.request
    most = {
        "cpus_milli": asked["cpus_milli"],
        "memory_bytes": asked["memory_bytes"] or None,
        "cpu_weight": weight(attempt.stage.job.priority),
        "io_weight": USUAL_WEIGHT,
    }
    for name, value in given.items():
        if value is None:
            continue
        bound = most.get(name)
        if name in {"cpus", "quantum_s"} or (name, value) == ("queue_class", "short"):
            return name
        if bound is not None and value > bound:
            return name
    return ""


def check(given: Mapping[str, Any]) -> None:
    """Raise Unadjustable for fields and values that no agent could apply."""
    if unknown := sorted(set(given) - set(_FIELDS)):
        text = _("a running part has no {name}; {others}")
        raise Unadjustable(text.format(name=unknown[0][:60], others=nearest(unknown[0], _FIELDS)), unknown[0])
    if not given:
        raise Unadjustable(_("say what is to change: some of {names}").format(names=listed(_FIELDS)))
    for name, value in given.items():
        if value is not None and (wants := _accepted(name, value)):
            text = _("{name} must be {what}, not {value}")
            raise Unadjustable(text.format(name=name, what=wants, value=repr(str(value)[:60])), name)


def _accepted(name: str, value: Any) -> str:
    """Return what this field accepts if it does not accept ``value``; else an empty text."""
    if name in _WHOLE:
        least, most = _WHOLE[name]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        fits = is_whole and least <= value <= most
        return "" if fits else _("a whole number from {low} to {high}").format(low=least, high=most)
    if name == "cpus":
        is_list = isinstance(value, list | tuple) and bool(value) and len(value) <= 4096
        fits = is_list and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
        return "" if fits and all(0 <= each < 65_536 for each in value) else _("a list of numbers of one core or more")
    if name == "queue_class":
        return "" if value in _CLASSES else _("{one} or {other}, or null").format(one=_CLASSES[0], other=_CLASSES[1])
    if name == "quantum_s":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = is_number and _SHORTEST_S <= value <= _LONGEST_S
        said = _("a number of seconds from {low} to {high}").format(low=_SHORTEST_S, high=f"{_LONGEST_S:g}")
        return "" if fits else said
    return "" if isinstance(value, bool) else _("true or false")


def _chosen(live: list[Part], ranks: Iterable[int] | None) -> list[Part]:
    if ranks is None:
        return live
    wanted, here = set(ranks), {part.rank for part in live}
    if missing := sorted(wanted - here):
        text = (
            _("there is no live rank {rank}; those that run are {ranks}")
            if here
            else _("there is no live rank {rank}; those that run are none")
        )
        raise Unadjustable(text.format(rank=missing[0], ranks=listed(map(str, sorted(here)))), "ranks")
    return [part for part in live if part.rank in wanted]


def _revise(part: Part, given: dict[str, Any]) -> bool:
    """Set the next revision of a part; return whether it differs from the one before."""
    former = msgspec.convert(part.share or {}, Share)
    clean = {name: (False if name == "suspended" and value is None else value) for name, value in given.items()}
    share = msgspec.structs.replace(former, **clean)
    if share == former:
        return False
    part.share = msgspec.to_builtins(share)
    part.spec_rev += 1
    return True


def _spoken(given: dict[str, Any]) -> Told:
    words = []
    for name, value in sorted(given.items()):
        if name == "suspended":
            words.append(told(clause("Suspended" if value else "GoesOn")))
        elif value is None:
            words.append(told(clause("AsStarted", name=name)))
        else:
            words.append(told(clause("SetTo", name=name, value=str(value))))
    return joined(words, "Comma")
