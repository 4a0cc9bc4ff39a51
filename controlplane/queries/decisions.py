"""The scheduler's decisions per cycle, with reasons and prices, and what another profile would have decided."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import django_filters
import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.jobs import basis, funnel
from controlplane.jobs import models as rows
from controlplane.pools import profiles
from controlplane.queries import names
from controlplane.queries.clauses import Clause, clauses
from controlplane.queries.filters import UserFilterSet
from controlplane.queries.job_rows import WaitReason
from controlplane.queries.reading import Representation, listed
from controlplane.queries.refusals import Unanswerable, Unseen
from controlplane.scheduling import waiting_reasons
from controlplane.scheduling.waiting_reasons import ACTS
from controlplane.sentences import in_language
from controlplane.wellformed import LARGEST_WHOLE
from controlplane.whatif.difference import QUESTION
from controlplane.whatif.questions import ask
from scheduler.core.model.clauses import plain
from scheduler.core.model.kinds import is_amount
from scheduler.core.model.reasons import sentence
from scheduler.core.model.sentences import said
from scheduler.decisions import code, difference, log
from scheduler.decisions.log import Record

# Planning a larger world again would block a web process for too long; the command line has no such limit.
MOST_SHOWN = 500


class ShadowOutcome(msgspec.Struct, frozen=True):
    """The outcome of the pools' shadow profiles in this cycle."""

    profile: str
    duration_ms: float
    differs: bool
    difference: dict[str, Any]


class Decision(msgspec.Struct, frozen=True):
    """One cycle with a changed outcome. Stages of jobs that you may not see are not named.

    Entries of stages have the reason as text in ``why`` and in clauses in ``why_said``. ``waits`` counts the primary
    reasons of waiting stages; ``head`` is the first of these in the queue.
    """

    id: int
    at: datetime
    profile: str
    code: str
    duration_ms: float
    waiting: int
    started: list[dict[str, Any]]
    evicted: list[dict[str, Any]]
    skipped: list[str]
    waits: dict[str, int]
    head: dict[str, Any]
    replanned: str
    replanned_said: list[Clause]
    shadow: ShadowOutcome | None


class DecisionWait(msgspec.Struct, frozen=True):
    """A stage that waited, with all its reasons in order of precedence and the number of nodes left after each
    filter."""

    stage: str
    reasons: list[WaitReason]
    expected_start: dict[str, Any] | None
    funnel: list[tuple[str, int]]
    funnel_said: list[Clause]


class DecisionStart(msgspec.Struct, frozen=True):
    """A stage that the plan started, its devices, and its predicted run time there; ``why_said`` is the reason in
    clauses."""

    stage: str
    why: str
    why_said: list[Clause]
    nodes: list[str]
    devices: int
    expected_s: dict[str, Any]


class DecisionDetail(msgspec.Struct, frozen=True):
    """A decision with its whole plan. ``recorded`` is false if the log no longer has its inputs: the plan is empty.
    ``profiles`` names the profile of each pool, and ``specs`` holds each of them as data. ``reproducible`` tells that
    this server runs the version of the engine that made the decision. ``hidden`` counts stages that you may not see;
    ``cut`` those after the last one here: ask with ``after``. If many wait, ``waits`` has those whose reasons were made
    in this cycle; ``decision.waits`` counts all."""

    decision: Decision
    recorded: bool
    reproducible: bool
    profiles: dict[str, str]
    specs: dict[str, dict[str, Any]]
    running: int
    nodes: int
    starts: list[DecisionStart]
    waits: list[DecisionWait]
    hidden: int
    cut: int


class TooLarge(Unanswerable):
    """Too many stages waited to plan the cycle again on a server."""


class DecisionDifference(msgspec.Struct, frozen=True):
    """The difference to the plan of another profile for the same world: ``only_active`` and ``only_other`` start under
    one of the two, ``elsewhere`` under both but on other devices; ``spared`` and ``evicted`` are stopped by one of the
    two."""

    profile: str
    differs: bool
    difference: dict[str, Any]


DID = {"start": "started", "evict": "evicted", "skip": "skipped"}


class DecisionFilter(UserFilterSet):
    """Filters of decisions."""

    did = django_filters.CharFilter(
        method="that_did",
        help_text="Only decisions that did this: start, evict, skip or wait (nothing of the three).",
    )
    job = django_filters.NumberFilter(
        method="of_job",
        min_value=-LARGEST_WHOLE,
        max_value=LARGEST_WHOLE,
        decimal_places=0,
        help_text="Only decisions that started, stopped or skipped a stage of the job with this number.",
    )
    code = django_filters.CharFilter(
        "waits",
        lookup_expr="has_key",
        help_text="Only decisions in which a stage waited for this primary reason, such as CapacityInsufficient.",
    )

    def that_did(self, decisions: QuerySet[rows.Decision], name: str, value: str) -> QuerySet[rows.Decision]:
        if value in DID:
            return decisions.exclude(**{DID[value]: []})
        if value == "wait":
            return decisions.filter(started=[], evicted=[], skipped=[])
        detail = _("did is one of {all} or wait, not {value!r}")
        raise Unanswerable(detail.format(all=", ".join(DID), value=value[:40]))

    def of_job(self, decisions: QuerySet[rows.Decision], name: str, value: Decimal) -> QuerySet[rows.Decision]:
        return _of_job(decisions, int(value), self.user)


def decisions() -> QuerySet[rows.Decision]:
    """All decisions, with the outcome of shadow profiles."""
    return rows.Decision.objects.select_related("shadow")


def shown(found: Iterable[rows.Decision], user: User) -> list[Decision]:
    """These decisions as this user may see them."""
    found = list(found)
    hidden = names.hidden(" ".join(map(_named, found)).encode(), user)
    return [_shown(each, hidden) for each in found]


def page(user: User, params: Mapping[str, str]) -> Representation:
    """One page of the decisions that ``params`` ask for."""
    return listed(user, "/decisions", params, DecisionFilter(params, decisions(), user=user), "-id", shown)


def one(user: User, number: int, code: str = "", after: int = 0) -> DecisionDetail:
    """Return a decision with its whole plan, as far as the log still has it, and a page of its waiting stages."""
    if after < 0:
        raise Unanswerable(_("after must be 0 or more"))
    row = found(number)
    record = log.find(settings.DECISIONS, number)
    if record is None:
        return DecisionDetail(
            decision=shown([row], user)[0],
            recorded=False,
            reproducible=False,
            profiles={},
            specs={},
            running=0,
            nodes=0,
            starts=[],
            waits=[],
            hidden=0,
            cut=0,
        )
    return _detail(row, record, user, code, after)


def under(user: User, number: int, profile: str) -> DecisionDifference:
    """Plan the cycle of a decision with another profile and return the difference."""
    found(number)
    try:
        profiles.named(profile)
    except ValueError as error:
        raise Unanswerable(in_language(said(error))) from None
    tried = ask(QUESTION, {"number": number, "profile": profile}, user)
    if not tried.recorded:
        what = _("record of decision {number}; records are kept for {kept_s:.0f} s")
        raise Unseen(what.format(number=number, kept_s=settings.DECISIONS_KEEP_S))
    if tried.difference is None:
        detail = _("{count:,} stages waited; use scheduler.cli diff --id {number}")
        raise TooLarge(detail.format(count=tried.waiting, number=number))
    words = tried.difference
    return DecisionDifference(profile, tried.differs, _shown_difference(words, names.hidden(str(words).encode(), user)))


def record_of(number: int) -> bytes:
    """Return the inputs of a decision as a log segment of one record, enough to replay it; it names stages of all
    projects."""
    found(number)
    record = log.find(settings.DECISIONS, number)
    if record is None:
        raise Unseen(_("record of decision {number}").format(number=number))
    return log.single_record_segment(record)


def found(number: int) -> rows.Decision:
    """The decision with this number; raises 404."""
    row = rows.Decision.objects.select_related("shadow").filter(pk=number).first()
    if row is None:
        raise Unseen(_("decision {number}").format(number=number))
    return row


def _of_job(decisions: QuerySet[rows.Decision], number: int, user: User) -> QuerySet[rows.Decision]:
    """Return the decisions that name the job; none if the user may not see it."""
    if not rows.Job.objects.filter(permissions.visible_jobs(user), number=number).exists():
        return decisions.none()
    name = f'%"#{number}/%'
    return decisions.extra(
        where=["(started::text LIKE %s OR evicted::text LIKE %s OR skipped::text LIKE %s)"], params=[name] * 3
    )


def _named(decision: rows.Decision) -> str:
    """A text with the names of all stages in the row."""
    shadow = getattr(decision, "shadow", None)
    difference = shadow.difference if shadow else ""
    return f"{decision.started} {decision.evicted} {decision.skipped} {decision.head} {difference}"


def _entry(stored: dict[str, Any], hidden: Container[int]) -> dict[str, Any]:
    """An entry of a stage as shown; of a hidden stage without sentences, because these describe it."""
    known = not names.is_hidden(stored.get("stage"), hidden)
    return {key: value for key, value in stored.items() if known or key in {"stage", "price", "gain"}}


def _shown_difference(found: dict[str, Any], hidden: Container[int]) -> dict[str, Any]:
    return {
        name: [_entry(each, hidden) for each in value] if isinstance(value, list) else value
        for name, value in found.items()
    }


def _shown(decision: rows.Decision, hidden: Container[int]) -> Decision:
    shadow = getattr(decision, "shadow", None)
    return Decision(
        id=decision.pk,
        at=decision.at,
        profile=decision.profile,
        code=decision.code,
        duration_ms=decision.duration_ms,
        waiting=decision.waiting,
        started=[_entry(each, hidden) for each in decision.started],
        evicted=[_entry(each, hidden) for each in decision.evicted],
        skipped=decision.skipped,
        # By frequency, because jsonb sorts keys by length.
        waits=dict(sorted(decision.waits.items(), key=lambda item: (-item[1], item[0]))),
        head=_entry(decision.head, hidden) if decision.head else {},
        replanned=decision.replanned,
        replanned_said=clauses(decision.replanned_said),
        shadow=ShadowOutcome(
            shadow.profile, shadow.duration_ms, shadow.differs, _shown_difference(shadow.difference, hidden)
        )
        if shadow
        else None,
    )


def _detail(row: rows.Decision, record: Record, user: User, code_: str, after: int) -> DecisionDetail:
    stages = difference.named(record.snapshot)
    hidden = names.hidden(" ".join([_named(row), *stages.values()]).encode(), user)
    nodes = {node.id: node.name for node in record.snapshot.nodes}
    starts = [
        DecisionStart(
            stage=stages[start.stage],
            why=start.why,
            why_said=clauses(plain(start.said)),
            nodes=[nodes.get(node, "?") for node in start.placement.nodes],
            devices=sum(not is_amount(one.device) for rank in start.placement.grants for one in rank),
            expected_s={
                "p50": start.lasts.p50_s if start.lasts.known else None,
                "p90": start.lasts.p90_s if start.lasts.known else None,
                **basis.plain(start.lasts.basis, start.lasts.runs),
            },
        )
        for start in record.plan.starts
        if not names.is_hidden(stages[start.stage], hidden)
    ]
    pools = {stage.id: stage.pool for stage in record.snapshot.waiting}
    known = [wait for wait in record.plan.waits if not names.is_hidden(stages[wait.stage], hidden)]
    chosen = [wait for wait in known if not code_ or (wait.reasons and wait.reasons[0].code == code_)]
    waits = chosen[after : after + MOST_SHOWN]
    shown = [
        DecisionWait(
            stage=stages[wait.stage],
            reasons=[WaitReason(r.code, sentence(r), ACTS[r.code], dict(r.params)) for r in wait.reasons],
            expected_start=waiting_reasons.shown(wait.expected),
            funnel=[(step.text, count) for step, count in filters],
            funnel_said=clauses([one for step, _ in filters for one in step.said]),
        )
        for wait in waits
        for filters in (funnel.steps(wait.funnel, pools.get(wait.stage, "?")),)
    ]
    return DecisionDetail(
        decision=_shown(row, hidden),
        recorded=True,
        reproducible=record.code == code.version(),
        profiles=dict(record.profiles),
        specs={name: dict(spec) for name, spec in sorted(record.specs.items())},
        running=len(record.snapshot.running),
        nodes=len(record.snapshot.nodes),
        starts=starts,
        waits=shown,
        hidden=len(record.plan.starts) + len(record.plan.waits) - len(starts) - len(known),
        cut=max(0, len(chosen) - after - len(waits)),
    )
