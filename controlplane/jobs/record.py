"""Applies agents' reports to the database: phases, exits, checkpoints and progress of parts, and ends of attempts.

A report with a lower or equal phase changes nothing; a stale epoch changes nothing; an ended part never changes. So a
report may arrive twice, late or out of order.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import ENDS, Exit, Here, Phase, Progress, Refused, Report, Wanted
from controlplane import changes
from controlplane.accounts import audit
from controlplane.clauses import Told, clause, each_of_agent, joined, of_agent, of_engine, told
from controlplane.fleet import alarms, survivors
from controlplane.fleet import service as fleet
from controlplane.fleet.identity import Caller, ReportVerdict, admits
from controlplane.fleet.models import Device, Node
from controlplane.fleet.world import parsed
from controlplane.jobs import adjust, halving, service
from controlplane.jobs.curves import Reported, append
from controlplane.jobs.models import Attempt, Checkpoint, Claim, Job, Output, Part, RungResult, Stage
from controlplane.jobs.service import Note
from controlplane.pools.profiles import takes_turns
from controlplane.providers.models import Pilot
from scheduler.core.model import fences, retry
from scheduler.core.model.lifecycle import Cause, NodeState, State, sources
from scheduler.core.model.lifecycle import StageEvent as What

log = logging.getLogger(__name__)

PROCESSING_LIMIT = 5_000
# Bounds of the values that a stage reports.
MOST_VALUES = 256
# The reason to stop tells more of such an end than how the process ended.
STOP_SAYS_WHY = frozenset({Cause.RESIZE, Cause.MOVE, Cause.REQUEUED, Cause.HELD_IDLE, Cause.EARLY_STOPPED})
LONGEST_VALUE = 2_000
LONGEST_AGE_S = 366 * 86_400.0
# Before this share of the work is done, its speed says nothing about the rest.
LEAST_SHARE = 0.05
# Causes of stops in favour of other stages: the lost work is recorded as their price.
PRICED = frozenset({Cause.PREEMPTED, Cause.RESIZE, Cause.MOVE})
# Causes with which a rank ends after its peer failed.
PEER_FAILED = frozenset({Cause.EXIT_CODE, Cause.SIGNAL})


@dataclass(slots=True)
class ReportAnswer:
    """The reply to a report, about the parts that it named."""

    accepted: dict[str, int] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    forget: list[str] = field(default_factory=list)
    leftovers: list[Wanted] = field(default_factory=list)
    want_inventory: bool = False
    # The verdict on the report as a whole, and a sentence about a second agent of the node.
    verdict: ReportVerdict = ReportVerdict.TAKEN
    says: Told = field(default_factory=Told)


def report(node_id: uuid.UUID, message: Report, caller: Caller | None = None) -> ReportAnswer:
    """Apply one Report of a node in one transaction, and return the reply.

    ``caller`` is the connection on which it arrived. A report that does not speak for the node (see ``fleet.identity``)
    changes nothing.
    """
    answer = ReportAnswer()
    with transaction.atomic():
        jobs_touched = _report(node_id, message, answer, caller or Caller())
        if jobs_touched:
            keys = ["jobs", "fleet", *(f"job:{number}" for number in jobs_touched[:50])]
            transaction.on_commit(lambda: changes.announce(*keys))
    return answer


def _note_restore(node: Node, message: Report, known: Mapping[str, _Known]) -> None:
    """Make a node accept orders again after it has seen a newer generation than the database has, and raise an alarm.

    The database was restored from a backup, or the node joined again with an old state folder. Unknown parts on the
    node go on: nothing in the database asks for them or may stop them, so a person has to decide.
    """
    if message.seen_generation <= node.generation:
        return
    seen, before = message.seen_generation, node.generation
    node.generation = seen + 1
    Node.objects.filter(id=node.id).update(generation=node.generation)
    left = [item.part for item in message.here if item.part not in known and item.phase < Phase.ENDED]
    part = ", ".join(left[:1]) or "–"
    says = told(clause("RecordBehind", seen=seen, known=before, count=len(left), part=part))
    alarms.raised(alarms.RESTORED, {node.name: says}, about=node.name)


def forgotten(node_id: uuid.UUID, part_ids: Collection[str]) -> None:
    """Handle parts that a node's agent acknowledged but does not know any more, because its state folder was replaced.

    Parts that ran before the node's present boot have ended. Others may still run: they are left as they are and an
    alarm is raised; whoever stops such a stage ends it.
    """
    with transaction.atomic():
        parts = list(
            Part.objects.filter(id__in=part_ids, node_id=node_id, ended_at=None).select_related("attempt__stage")
        )
        jobs = service.lock({part.attempt.stage.job_id for part in parts})
        node = Node.objects.select_for_update().get(id=node_id)
        over = [part for part in parts if part.started_at and node.booted_at and part.started_at < node.booted_at]
        reboot = Exit(cause="NODE_REBOOT", detail=ENDS["Rebooted"], said=[("Rebooted", {})])
        here = {
            str(part.id): Here(
                part=str(part.id), attempt=str(part.attempt_id), epoch=part.epoch, phase=Phase.ENDED, exit=reboot
            )
            for part in over
        }
        _advance(over, here, jobs, timezone.now())
        left = sorted(str(part.id) for part in parts if part not in over)
        says = told(clause("PartsForgotten", count=len(left), part=", ".join(left[:1])))
        alarms.raised(alarms.MEMORY, {node.name: says} if left else {}, about=node.name)


def ended_away(node_id: uuid.UUID, here: Iterable[Here]) -> int:
    """End parts on a node that stands for another cluster, which is silent; return how many had not ended.

    It is no report: the node stays as silent as it is.
    """
    told_ = {item.part: item for item in here}
    with transaction.atomic():
        rows = Part.objects.filter(id__in=list(told_), node_id=node_id, ended_at=None)
        jobs = service.lock(rows.values_list("attempt__stage__job_id", flat=True))
        Node.objects.select_for_update().get(id=node_id)
        parts = list(rows.select_related("attempt__stage"))
        _advance([part for part in parts if _advances(part, told_[str(part.id)])], told_, jobs, timezone.now())
        keys = ["jobs", "fleet", *(f"job:{job.number}" for job in list(jobs.values())[:50])]
        transaction.on_commit(lambda: changes.announce(*keys))
    return len(parts)


@dataclass(frozen=True, slots=True)
class _Known:
    """The stored fields of a part named in a report that are needed to see whether the report says anything new."""

    id: uuid.UUID
    epoch: int
    phase: int
    ended: bool
    rank: int
    substate: str
    seen_rev: int
    notes: list[str]
    listens: list[int]
    attempt: uuid.UUID
    cause: str
    stage: uuid.UUID
    job: uuid.UUID
    number: int


# Written out: every node reports every few seconds, and most reports ask nothing else.
_KNOWN = """
SELECT p.id, p.epoch, p.phase, p.ended_at IS NOT NULL, p.rank, p.substate, p.seen_rev, p.notes, p.listens,
       p.attempt_id, a.cause, a.stage_id, s.job_id, j.number
FROM jobs_part p JOIN jobs_attempt a ON a.id = p.attempt_id JOIN jobs_stage s ON s.id = a.stage_id
     JOIN jobs_job j ON j.id = s.job_id
WHERE p.id = ANY(%s) AND p.node_id = %s
"""


def _known(node_id: uuid.UUID, part_ids: list[uuid.UUID]) -> dict[str, _Known]:
    if not part_ids:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_KNOWN, [part_ids, node_id])
        return {str(row[0]): _Known(*(*row[:7], parsed(row[7]), parsed(row[8]), *row[9:])) for row in cursor.fetchall()}


def _report(node_id: uuid.UUID, message: Report, answer: ReportAnswer, caller: Caller) -> list[int]:
    here = {item.part: item for item in message.here[:PROCESSING_LIMIT]}
    known = _known(node_id, [uuid.UUID(part_id) for part_id in here if is_uuid(part_id)])
    # Lock order, here as everywhere: jobs, then nodes, then their rows.
    news = [
        part
        for part_id, part in known.items()
        if here[part_id].epoch == part.epoch and not part.ended and here[part_id].phase > part.phase
    ]
    jobs = service.lock(part.job for part in news)
    node = Node.objects.select_for_update().get(id=node_id)
    answer.verdict, answer.says = admits(node, message, caller)
    if answer.verdict is ReportVerdict.COPY:
        fleet.suspend(node, answer.says)
    if answer.verdict is not ReportVerdict.TAKEN:
        return []
    at = timezone.now()
    _note_restore(node, message, known)
    if news:
        # The first read was before the lock; only the state read under the lock counts.
        rows = (
            Part.objects.filter(id__in=[part.id for part in news])
            .select_related("attempt__stage")
            .defer("attempt__stage__reasons", "attempt__stage__funnel", "attempt__stage__promise")
        )
        advancing = [part for part in rows if _advances(part, here[str(part.id)])]
        _advance(advancing, here, jobs, at)
        for part in advancing:
            known[str(part.id)] = replace(known[str(part.id)], phase=part.phase, ended=part.ended_at is not None)
    touched = _notice(known, here, at)
    was_lost = node.state == NodeState.LOST
    are_news = survivors.note(node, (item for part_id, item in here.items() if part_id not in known), at)
    if fleet.record_report(node, message, survivors.held(node), are_news=are_news):
        transaction.on_commit(changes.wake)
    if was_lost and node.state != NodeState.LOST:
        mark_contact([node.id], lost=False)
    if message.kept is not None:
        fleet.note_kept(node, message.kept)
    answer.want_inventory = message.inventory.full is None and message.inventory.hash != node.inventory_hash
    _answer(known, here, answer)
    stops, forget = survivors.orders(node) if node.survivors else ([], [])
    answer.leftovers += stops
    answer.forget += forget
    return [job.number for job in jobs.values()] + touched


def is_uuid(text: str) -> bool:
    """Whether a received name has the form of our ids."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _advances(part: Part, item: Here) -> bool:
    return item.epoch == part.epoch and part.ended_at is None and item.phase > part.phase


def _answer(known: dict[str, _Known], here: dict[str, Here], answer: ReportAnswer) -> None:
    for part_id, item in here.items():
        part = known.get(part_id)
        if part is None:
            answer.unknown.append(part_id)
        elif item.epoch != part.epoch:
            answer.refused.append(Refused(part=part_id, epoch=item.epoch, code="stale_epoch"))
        else:
            answer.accepted[part_id] = part.phase
            if part.ended and item.phase >= Phase.ENDED:
                answer.forget.append(part_id)
            elif part.ended:
                # The attempt was given up (its node was lost), but the part still runs: it must end.
                order = Wanted(
                    part=part_id, attempt=item.attempt, epoch=item.epoch, do="stop", why=part.cause, grace_s=0
                )
                answer.leftovers.append(order)


def _advance(advancing: Sequence[Part], here: dict[str, Here], jobs: dict[uuid.UUID, Job], at: datetime) -> None:
    if not advancing:
        return
    ended: list[Part] = []
    for part in advancing:
        item = here[str(part.id)]
        part.phase, part.pid, part.pid_start = item.phase, item.pid or part.pid, item.pid_start or part.pid_start
        doing = of_agent(item.substate, item.substate_said)
        part.substate, part.substate_said = doing.text[:60], doing.said
        ran_s = item.exit.ran_s if item.exit is not None and item.phase >= Phase.ENDED else 0.0
        if item.phase >= Phase.RUNNING and part.started_at is None:
            part.started_at = max(part.attempt.created_at, at - timedelta(seconds=min(max(ran_s, 0.0), LONGEST_AGE_S)))
        if item.phase >= Phase.ENDED:
            part.ended_at, part.exit, part.forgotten = at, msgspec.to_builtins(item.exit or Exit()), True
            if part.started_at is not None and 0 < ran_s <= LONGEST_AGE_S:
                # The time at which the process ended on its host, not that of the report.
                part.ended_at = min(at, part.started_at + timedelta(seconds=ran_s))
            ended.append(part)
    _write_parts(advancing)
    if ended:
        Claim.objects.filter(part__in=ended, closed_at=None).update(closed_at=at)
    whole = {part.attempt_id: part.attempt for part in advancing}
    peers: dict[uuid.UUID, list[Part]] = defaultdict(list)
    gang_ids = [a.id for a in whole.values() if a.stage.request["nodes"] > 1]
    for part in advancing:
        if part.attempt_id not in gang_ids:
            peers[part.attempt_id].append(part)
    for part in Part.objects.filter(attempt__in=gang_ids).select_related("node"):
        peers[part.attempt_id].append(part)
    _attempts_follow(whole.values(), peers, jobs, at)


_PARTS = """
UPDATE jobs_part p SET phase = v.phase, pid = v.pid, pid_start = v.pid_start, substate = v.substate,
    substate_said = v.substate_said, started_at = v.started_at, ended_at = v.ended_at, exit = v.exit,
    forgotten = v.forgotten
FROM unnest(%s::uuid[], %s::smallint[], %s::bigint[], %s::bigint[], %s::text[], %s::jsonb[],
            %s::timestamptz[], %s::timestamptz[], %s::jsonb[], %s::bool[])
    AS v(id, phase, pid, pid_start, substate, substate_said, started_at, ended_at, exit, forgotten)
WHERE p.id = v.id AND p.phase < v.phase
"""


def _write_parts(parts: Sequence[Part]) -> None:
    names = (
        "id", "phase", "pid", "pid_start", "substate", "substate_said", "started_at", "ended_at", "exit", "forgotten",
    )  # fmt: skip
    columns = [[getattr(part, name) for part in parts] for name in names]
    for at in (names.index("substate_said"), names.index("exit")):
        columns[at] = [None if value is None else json.dumps(value) for value in columns[at]]
    with connection.cursor() as cursor:
        cursor.execute(_PARTS, columns)


def _attempts_follow(
    attempts: Iterable[Attempt], peers: dict[uuid.UUID, list[Part]], jobs: dict[uuid.UUID, Job], at: datetime
) -> None:
    started: list[Attempt] = []
    over: list[tuple[Attempt, list[Part]]] = []
    notes: list[Note] = []
    for attempt in attempts:
        parts = peers[attempt.id]
        if all(part.ended_at for part in parts):
            over.append((attempt, parts))
        elif any(part.ended_at and _failed(part) for part in parts):
            # One rank has ended: the whole gang ends, for that rank's reason.
            notes += service.stop([jobs[attempt.stage.job_id]], [attempt.stage], Cause(_cause_of(parts)), at)
        elif attempt.started_at is None and all(part.phase >= Phase.RUNNING for part in parts):
            started.append(attempt)
    notes += _begin(started, jobs, at)
    adjust.follow(started, peers)
    notes += _end(over, jobs, at)
    moved = {attempt.stage.job_id for attempt in [*started, *(attempt for attempt, _ in over)]}
    touched = [job for job in jobs.values() if job.id in moved | {fact.job.id for fact in notes}]
    service.settle(touched, notes, at, [attempt.stage for attempt in [*started, *(attempt for attempt, _ in over)]])


def _failed(part: Part) -> bool:
    return bool((part.exit or {}).get("cause"))


def _first_to_fail(parts: Sequence[Part]) -> Part | None:
    """Return the part that failed first and so caused the end of the others, which fail or are stopped after it."""
    failed = [part for part in parts if part.ended_at and _failed(part)]
    return min(failed, key=lambda p: (bool((p.exit or {}).get("stopped")), _failed_at(p), p.rank), default=None)


def _failed_at(part: Part) -> datetime:
    """Return the best known time at which a part failed.

    For a part on a lost node it is when the node fell silent: its peers notice that long before the control plane does,
    and fail because of it.
    """
    assert part.ended_at is not None, "only parts that have ended are asked about"
    was_lost = (part.exit or {}).get("cause") == Cause.NODE_FAIL
    return part.node.last_report_at if was_lost and part.node.last_report_at else part.ended_at


def _cause_of(parts: Sequence[Part]) -> str:
    first = _first_to_fail(parts)
    return (first.exit or {}).get("cause", "") if first else ""


def _detail_of(parts: Sequence[Part], worst: dict[str, Any]) -> Told:
    """Return how the deciding part ended; for a gang also its rank and node."""
    detail = of_agent(str(worst.get("detail", "")), worst.get("said") or ())
    first = _first_to_fail(parts)
    if len(parts) < 2 or first is None:
        return detail
    known = detail if detail.text else Told((first.exit or {}).get("cause", ""))
    return told(clause("OnRank", rank=first.rank, node=first.node.name, detail=known))


def _begin(attempts: Sequence[Attempt], jobs: dict[uuid.UUID, Job], at: datetime) -> list[Note]:
    """Record that all parts of these attempts run: their stages become RUNNING."""
    if not attempts:
        return []
    for attempt in attempts:
        attempt.started_at = at
        attempt.stage.started_at = attempt.stage.started_at or at
    Attempt.objects.filter(id__in=[attempt.id for attempt in attempts]).update(started_at=at)
    service.move([a.stage for a in attempts if State(a.stage.state) in sources(What.START)], What.START)
    return [
        Note(jobs[a.stage.job_id], "started", told(clause("Runs", stage=a.stage.name)), "agent", a.stage.name, a.number)
        for a in attempts
    ]


_END = """
UPDATE jobs_attempt a SET started_at = v.started_at, ended_at = v.ended_at, cause = v.cause, detail = v.detail,
    exit_code = v.exit_code, signal = v.signal, price = v.price, said = v.said
FROM unnest(%s::uuid[], %s::timestamptz[], %s::timestamptz[], %s::text[], %s::text[], %s::int[], %s::int[],
            %s::float8[], %s::jsonb[]) AS v(id, started_at, ended_at, cause, detail, exit_code, signal, price, said)
WHERE a.id = v.id AND a.ended_at IS NULL
"""


def _end(over: Sequence[tuple[Attempt, list[Part]]], jobs: dict[uuid.UUID, Job], at: datetime) -> list[Note]:
    """Record that these attempts have ended on all their nodes: set the cause, and the next state of their stages."""
    if not over:
        return []
    notes: list[Note] = []
    moves: dict[What, list[Stage]] = defaultdict(list)
    for attempt, parts in over:
        what, fact = _end_one(attempt, parts, jobs[attempt.stage.job_id], at)
        moves[what].append(attempt.stage)
        notes.append(fact)
        if given := _given_back(attempt, parts, jobs[attempt.stage.job_id]):
            notes.append(given)
    attempts = [attempt for attempt, _ in over]
    names = ("id", "started_at", "ended_at", "cause", "detail", "exit_code", "signal", "price")
    columns: list[list[Any]] = [[getattr(attempt, name) for attempt in attempts] for name in names]
    columns.append([json.dumps(attempt.said) for attempt in attempts])
    with connection.cursor() as cursor:
        cursor.execute(_END, columns)
    for what, stages in moves.items():
        service.move(stages, what)
    Device.objects.filter(fenced_for__in=[a.stage_id for a in attempts]).update(fenced_for=None, fenced_until=None)
    for attempt in attempts:
        _fence(attempt, at)
    transaction.on_commit(changes.wake)
    return notes


def _fence(attempt: Attempt, at: datetime) -> None:
    """Reserve devices that an eviction freed for the stage that it was done for, with those freed for it before.

    A resized stage that keeps a device has it reserved for itself.
    """
    devices = Device.objects.filter(claims__part__attempt=attempt, fenced_for=None).exclude(kind="cpu")
    until = _fenced_until(at, ())
    if attempt.resized_to is not None and attempt.stop_why == Cause.RESIZE:
        own = devices.filter(claims__part__attempt=attempt, claims__part__rank__lt=attempt.resized_to)
        Device.objects.filter(id__in=list(own.values_list("id", flat=True))).update(
            fenced_for=attempt.stage_id, fenced_until=until
        )
    if attempt.stop_for and Stage.objects.filter(id=attempt.stop_for, state=State.PENDING).exists():
        stopping = Attempt.objects.filter(stop_for=attempt.stop_for, ended_at=None).select_related("stage")
        grace = [(one.stop_at, timedelta(seconds=one.stage.request["grace_s"])) for one in stopping]
        until = _fenced_until(at, [told_at + grace_s for told_at, grace_s in grace if told_at])
        if attempt.stop_devices is not None:
            devices = devices.filter(id__in=attempt.stop_devices)
        devices.update(fenced_for=attempt.stop_for)
        Device.objects.filter(fenced_for=attempt.stop_for).update(fenced_until=until)


def _fenced_until(at: datetime, stop_by: Iterable[datetime]) -> datetime:
    return datetime.fromtimestamp(fences.until(at.timestamp(), (one.timestamp() for one in stop_by)), at.tzinfo)


# How a command ends that was told to.
_WHEN_TOLD: Final = ("", Cause.SIGNAL, Cause.EXIT_CODE)


def _drain_pilots(parts: Sequence[Part]) -> None:
    """Place nothing new on nodes that their engine is about to take away."""
    for node in Node.objects.filter(pk__in=[part.node_id for part in parts], state=NodeState.READY).order_by("id"):
        fleet.drain(node, "agent", told(clause("AllocationEnded")))


def _is_on_a_pilot(parts: Sequence[Part]) -> bool:
    """Whether the engine of a provider may have ended this, which nobody here did."""
    pilots = Pilot.objects.filter(node__in=[part.node_id for part in parts])
    return pilots.exclude(state=Pilot.PilotState.GONE).exists()


def _end_one(attempt: Attempt, parts: Sequence[Part], job: Job, at: datetime) -> tuple[What, Note]:
    stage, request = attempt.stage, attempt.stage.request
    exits = [part.exit or {} for part in parts]
    cause = _cause_of(parts)
    first = _first_to_fail(parts)
    worst = (first.exit if first else None) or exits[0]
    was_stopped = any(e.get("stopped") for e in exits)
    follows = cause == Cause.NODE_FAIL and attempt.stop_why in PEER_FAILED
    is_preempted = False
    if attempt.stop_why and (was_stopped or cause) and not follows:
        cause = attempt.stop_why
    elif is_preempted := was_stopped and cause in _WHEN_TOLD and _is_on_a_pilot(parts):
        cause = Cause.PREEMPTED
    elif cause == "" and was_stopped:
        cause = Cause.CANCELLED
    attempt.started_at = attempt.started_at or min((p.started_at for p in parts if p.started_at), default=None)
    # The claims are closed only now, at ``at``; the work ended when the last part did.
    attempt.ended_at, attempt.cause = max((p.ended_at for p in parts if p.ended_at), default=at), cause
    if attempt.started_at:
        attempt.ended_at = max(attempt.ended_at, attempt.started_at)
    attempt.exit_code, attempt.signal = worst.get("code"), worst.get("signal")
    detail = _detail_of(parts, worst)
    if cause in STOP_SAYS_WHY and attempt.stop_note:
        detail = Told(attempt.stop_note, attempt.said.get("stop_note", []))
    if is_preempted:
        detail = told(clause("AllocationEnded"))
        # After the report that tells it, which writes its node's row; and before the cycle that it wakes.
        transaction.on_commit(lambda: _drain_pilots(parts))
    detail = Told(detail.text[:2000], detail.said)
    attempt.detail, attempt.said = detail.text, {**attempt.said, "detail": detail.said}
    stage.said = detail.said
    stage.started_at = stage.started_at or attempt.started_at or at
    stage.exit_code, stage.detail, stage.cause = attempt.exit_code, attempt.detail, cause
    if not cause:
        stage.ended_at = at
        return What.COMPLETE, Note(
            job, "completed", told(clause("Completed", stage=stage.name)), "agent", stage.name, attempt.number
        )
    verdict = retry.decide(
        cause,
        stage.failures + 1,
        stage.max_attempts,
        request["retry"]["on"],
        preemptions=0 if cause == Cause.PREEMPTED and takes_turns(job.pool.profile) else stage.preemptions + 1,
        on_node_lost=request["on_node_lost"],
        backoff_s=request["retry"]["backoff_s"],
    )
    if attempt.stop_why == Cause.CANCELLED:
        verdict = retry.RetryVerdict(retry.RetryOutcome.CANCEL, counts=False)
    stage.failures += 1 if verdict.counts else 0
    what = verdict.event
    if what == What.REQUEUE:
        stage.preemptions += 1 if cause == Cause.PREEMPTED else 0
        stage.retry_at = at + timedelta(seconds=verdict.backoff_s) if verdict.backoff_s else None
        attempt.price = _lost_device_s(attempt, parts, at) if cause in PRICED else None
    else:
        stage.ended_at = at
    if what == What.CANCEL and State(stage.state) not in sources(What.CANCEL):
        # It ended by a signal of its own before it was asked to stop.
        what = What.FAIL
    if attempt.started_at:
        ran_s = round((attempt.ended_at - attempt.started_at).total_seconds())
        said = [clause("EndedAfter", stage=stage.name, cause=str(cause), ran_s=ran_s)]
    else:
        said = [clause("Ended", stage=stage.name, cause=str(cause))]
    if detail.text:
        said.append(clause("Detail", detail=detail))
    if what == What.REQUEUE:
        following = of_engine(verdict.why, verdict.said)
        said.append(clause("Then", what=following) if verdict.said else clause("QueuedOnceMore"))
    return what, Note(job, what, told(*said), "agent", stage.name, attempt.number, {"cause": cause})


def _given_back(attempt: Attempt, parts: Sequence[Part], job: Job) -> Note | None:
    """Return a note of the device memory measured before the end was reported; None if nothing was measured."""
    found = [each for part in parts for each in (part.exit or {}).get("released", ())]
    if not found:
        return None
    late = [each for each in found if each.get("is_back") is False]
    verdict = "KeptMemory" if late else "GaveBack" if any(each.get("is_back") for each in found) else "LeftDevices"
    devices = joined([_measured(each) for each in (late or found)[:8]], "Also")
    text = told(clause(verdict, stage=attempt.stage.name, devices=devices))
    return Note(job, "released", text, "agent", attempt.stage.name, attempt.number, {"devices": found[:64]})


def _measured(one: dict[str, Any]) -> Told:
    """Describe one device: ``GPU-1 had 31.0 GiB in use, 0.4 GiB 0.31 s after the end (0.4 GiB before the start)``."""
    if one.get("left_bytes") is None:
        return told(clause("Unmeasured", device=one["uuid"]))
    most, before = one.get("most_bytes"), one.get("before_bytes")
    left = {"device": one["uuid"], "left_bytes": one["left_bytes"], "after": f"{one.get('after_s') or 0:.2f}"}
    said = [clause("Left", **left) if most is None else clause("LeftOf", most_bytes=most, **left)]
    if before is not None:
        said.append(clause("LeftBefore", before_bytes=before))
    return told(*said)


def _lost_device_s(attempt: Attempt, parts: Sequence[Part], at: datetime) -> float:
    """Return the device-seconds of work that an eviction discarded, on all claimed accelerators.

    They count from the newest checkpoint, or from the start if there is none.
    """
    newest = attempt.checkpoints.order_by("-at").values_list("at", flat=True).first()
    since = newest or attempt.started_at or at
    shares = Claim.objects.filter(part__in=parts).exclude(device__kind="cpu").values_list("milli", flat=True)
    milli = sum(shares) or 1000
    return max(0.0, (at - since).total_seconds()) * milli / 1000


def _notice(known: dict[str, _Known], here: dict[str, Here], at: datetime) -> list[int]:
    """Store progress, reported values and confirmed checkpoints; no state changes because of them.

    Returns the numbers of the jobs that changed.
    """
    speaking = {part_id: part for part_id, part in known.items() if here[part_id].epoch == part.epoch}
    touched: set[int] = set()
    telling = [part for part_id, part in speaking.items() if part.rank == 0 and here[part_id].progress is not None]
    columns = ("id", "progress", "values", "index", "job__array", "job__array__halving")
    stages = Stage.objects.filter(id__in=[part.stage for part in telling]).values_list(*columns)
    found = list(stages) if telling else []
    said = {i: (progress, values) for i, progress, values, *_sweep in found}
    sweeps = {i: (index, array, rule) for i, _progress, _values, index, array, rule in found if rule}
    rungs: list[RungResult | None] = []
    paces = Attempt.objects.in_bulk([part.attempt for part in telling]) if telling else {}
    rows: list[Checkpoint] = []
    numbers: list[Reported] = []
    for part_id, part in speaking.items():
        item = here[part_id]
        if item.progress is not None and part.rank == 0:
            progress = {"step": item.progress.step, "total": item.progress.total, "phase": item.progress.phase[:60]}
            values = _newer(said[part.stage][1], item.progress.values)
            if part.stage in sweeps and paces[part.attempt].stop_why not in halving.FOR_GOOD:
                rungs.append(halving.reached(part.stage, *sweeps[part.stage], item.progress, at))
            if (progress, values) != said[part.stage]:
                if item.progress.step is not None:
                    numbers.append(Reported(part.attempt, item.progress.step, item.progress.values, at.timestamp()))
                Stage.objects.filter(id=part.stage).update(progress=progress, values=values)
                _keep_pace(paces[part.attempt], item.progress, at)
                touched.add(part.number)
        for checkpoint in item.checkpoints if part.rank == 0 else ():
            rows.append(
                Checkpoint(
                    stage_id=part.stage,
                    attempt_id=part.attempt,
                    step=checkpoint.step,
                    path=checkpoint.path[:1000],
                    took_s=None if checkpoint.took_s is None else min(max(0.0, checkpoint.took_s), LONGEST_AGE_S),
                    at=at - timedelta(seconds=min(max(0.0, checkpoint.age_s), LONGEST_AGE_S)),
                )
            )
            touched.add(part.number)
        if item.outputs and part.rank == 0:
            _keep_outputs(part, item, at)
            touched.add(part.number)
        notes = [note[:300] for note in item.notes[:20]]
        if (item.spec_rev, notes) != (part.seen_rev, part.notes) and not part.ended:
            notes_said = [note.said for note in each_of_agent(notes, item.notes_said)]
            Part.objects.filter(id=part.id).update(seen_rev=item.spec_rev, notes=notes, notes_said=notes_said)
            touched.add(part.number)
        if item.listens != part.listens and not part.ended:
            Part.objects.filter(id=part.id).update(listens=item.listens)
            touched.add(part.number)
        if item.substate and item.substate[:60] != part.substate and not part.ended:
            doing = of_agent(item.substate, item.substate_said).said
            Part.objects.filter(id=part.id).update(substate=item.substate[:60], substate_said=doing)
            touched.add(part.number)
    if rows:
        Checkpoint.objects.bulk_create(rows, ignore_conflicts=True)
    append(numbers)
    halving.store(rungs)
    return sorted(touched)


def _keep_pace(attempt: Attempt, progress: Progress, at: datetime) -> None:
    """Store the share of its work that an attempt has done, if that changes its predicted end noticeably.

    A change is noticeable if it is a twentieth of the remaining time, and at least a second. Each write makes the
    scheduler evaluate the stage again, and most reports only confirm the prediction. Progress of an attempt that
    resumed says nothing about its speed, nor do the first five percent; both are ignored.
    """
    began = attempt.started_at
    step, total = progress.step or 0, progress.total or 0
    if attempt.number != 1 or began is None or total <= 0 or at <= began:
        return
    share = min(1.0, step / total)
    if share < LEAST_SHARE:
        return
    ran_s = (at - began).total_seconds()
    if attempt.progress_share is not None and attempt.progress_at is not None:
        known_s = (attempt.progress_at - began).total_seconds() / attempt.progress_share
        if abs(ran_s / share - known_s) <= max(1.0, 0.05 * (known_s - ran_s)):
            return
    Attempt.objects.filter(id=attempt.id).update(progress_share=share, progress_at=at)


def _newer(known: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """Merge reported values by name; the number of names is bounded, so that ever new names do not grow the row."""
    values = {**known, **{name[:LONGEST_VALUE]: _cut(value) for name, value in list(told.items())[:64]}}
    return dict(list(values.items())[-MOST_VALUES:])


def _cut(value: Any) -> Any:
    return value[:LONGEST_VALUE] if isinstance(value, str) else value


def _keep_outputs(part: _Known, item: Here, at: datetime) -> None:
    rows = [
        Output(
            stage_id=part.stage,
            attempt_id=part.attempt,
            name=each.name[:63],
            digest=each.digest,
            size_bytes=each.size_bytes,
            files=each.files,
            at=at,
        )
        for each in item.outputs[:64]
        if len(each.digest) == 64
    ]
    Output.objects.bulk_create(rows, ignore_conflicts=True)


def give_up_lost(lease_s: float, margin_s: float = 10.0, not_before: datetime | None = None) -> int:
    """End attempts on lost nodes whose stage requests *requeue*, once the old attempt is certainly dead.

    The shim stops such a part by itself when its lease ends: nothing of it is left after lease, grace and a margin,
    counted from the last answered report. If the database's clock cannot be trusted before ``not_before``, silence
    counts from there at the earliest. Under *wait* nothing happens here: only proof of death or a person ends such an
    attempt. Returns how many attempts ended.
    """
    now = fleet.now_in_database()
    # The silence of another cluster proves nothing: no lease ends what runs there.
    silent = Part.objects.filter(ended_at=None, node__state=NodeState.LOST, node__is_site=False)
    lost = silent.select_related("attempt__stage", "node")
    doomed: set[uuid.UUID] = set()
    for part in lost:
        request = part.attempt.stage.request
        heard_at = max((at for at in (part.node.last_report_at, not_before) if at is not None), default=now)
        silent_s = (now - heard_at).total_seconds() if part.node.last_report_at else 0.0
        if request["on_node_lost"] == "requeue_fast" or (
            request["on_node_lost"] == "requeue" and silent_s > lease_s + request["grace_s"] + margin_s
        ):
            doomed.add(part.attempt_id)
    return _give_up(doomed)


def give_up(node: Node, actor: str, reason: str) -> int:
    """End the attempts on a lost node because a person confirms that it is gone. Return how many attempts ended.

    Raises NodeRefused for a node that is not LOST, or without a reason.
    """
    if not reason.strip():
        raise fleet.NodeRefused(_("this needs a reason: others will ask how you know that nothing of it runs"))
    if node.state != NodeState.LOST:
        raise fleet.NodeRefused(
            _("node {name} is {state}, not LOST: only what is out of contact can be confirmed as lost").format(
                name=node.name, state=node.state
            )
        )
    log.warning("%s confirms that node %s is gone: %s", actor, node.name, reason)
    parts = Part.objects.filter(node=node, ended_at=None)
    with transaction.atomic():
        # In one transaction and in the general lock order: they end together, and the log says so.
        service.lock(parts.values_list("attempt__stage__job_id", flat=True))
        ended = _give_up(set(parts.values_list("attempt_id", flat=True)))
        audit.record("node.lost", node, before={"state": node.state}, after={"attempts_ended": ended}, reason=reason)
    return ended


def _give_up(doomed: Collection[uuid.UUID]) -> int:
    """End those of these attempts that have parts on lost nodes; return how many."""
    ended = 0
    for attempt_id in sorted(doomed):
        with transaction.atomic():
            job_id = Attempt.objects.values_list("stage__job_id", flat=True).get(id=attempt_id)
            jobs = service.lock([job_id])
            attempt = Attempt.objects.select_related("stage").get(id=attempt_id)
            if attempt.ended_at is not None:
                continue
            at = timezone.now()
            parts = list(attempt.parts.select_related("node").select_for_update(of=["node"]).order_by("node_id"))
            gone = [part for part in parts if part.ended_at is None and part.node.state == NodeState.LOST]
            for part in gone:
                params: dict[str, str | int | float] = {"node": part.node.name}
                detail = told(clause("NodeLost", **params)).text
                part.phase, part.ended_at, part.forgotten = Phase.ENDED, at, True
                exit_ = Exit(cause="NODE_FAIL", detail=detail, said=[("NodeLost", params)])
                part.exit = msgspec.to_builtins(exit_)
            _write_parts(gone)
            Claim.objects.filter(part__in=gone, closed_at=None).update(closed_at=at)
            _attempts_follow([attempt], {attempt.id: parts}, jobs, at)
            number = jobs[job_id].number
            transaction.on_commit(lambda n=number: changes.announce("jobs", f"job:{n}", "fleet"))  # type: ignore[misc]
            ended += 1
    return ended


def mark_contact(node_ids: Iterable[uuid.UUID], lost: bool) -> None:
    """Mark the live attempts of these nodes as out of contact, or as in contact again."""
    live = Attempt.objects.filter(ended_at=None, parts__node__in=list(node_ids))
    if lost:
        live.filter(contact_lost_at=None).update(contact_lost_at=timezone.now())
        return
    silent = Part.objects.filter(ended_at=None, node__state=NodeState.LOST)
    live.exclude(contact_lost_at=None).exclude(id__in=silent.values("attempt_id")).update(contact_lost_at=None)
