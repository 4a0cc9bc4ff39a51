"""Decides which agent process speaks for a node: one incarnation at a time, on one machine and in one boot.

A copied state folder gives two agents one credential. Each agent process therefore has an *incarnation*, a nonce, and
the node's row holds the incarnation that speaks for it now. Another may succeed it after a restart of the agent, or a
reboot or replacement of the machine. Whether it succeeds or is a second one beside the first is judged from the
behaviour of both, never from what one of them claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.conf import settings
from django.db.models.functions import Now

from agents.protocol import Report
from controlplane.clauses import Told, clause, told
from controlplane.fleet.models import Node
from controlplane.fleet.service import now_in_database

# After this many report periods of silence the former incarnation is considered gone.
PERIODS_OF_SILENCE = 2.5
LEAST_SILENCE_S = 1.0


class ReportVerdict(StrEnum):
    """What to do with a report. Only one that is TAKEN changes anything."""

    TAKEN = "taken"
    """It speaks for the node."""
    OLD = "old"
    """It was taken before, or a later one was: a message that came twice, or late."""
    FENCED = "fenced"
    """A newer process of the same node speaks for it."""
    WAITS = "waits"
    """The incarnation before it may still be alive; it reports again until that is known."""
    COPY = "copy"
    """Two are alive."""


@dataclass(slots=True)
class Caller:
    """One connection of an agent: when it was opened, and when it first asked to succeed another incarnation.

    Both times are by the clock of the database.
    """

    opened_at: datetime | None = None
    asked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Incarnation:
    """An agent process: its nonce, its place in the order of starts, its machine and its boot."""

    name: str
    start_seq: int
    boot_id: str
    machine_id: str = ""


def judge(
    message: Incarnation,
    seq: int,
    holder: Incarnation,
    holder_seq: int,
    *,
    silent_s: float,
    patience_s: float,
    heard_since_asked: bool,
    opened_since: bool,
) -> ReportVerdict:
    """Decide about a report with number ``seq`` of one incarnation while ``holder`` speaks for the node.

    ``silent_s`` is how long the holder has been silent; ``heard_since_asked`` says that it reported since the other
    first asked to succeed it, ``opened_since`` that the other's connection was opened after the holder's first report.
    An agent from before incarnations has an empty name, and is judged by its start alone.
    """
    if not message.name or not holder.name:
        return ReportVerdict.FENCED if message.start_seq < holder.start_seq else ReportVerdict.TAKEN
    if message.name == holder.name:
        return ReportVerdict.TAKEN if seq > holder_seq else ReportVerdict.OLD
    is_alive = silent_s < patience_s
    if is_of_another_machine(message, holder):
        # However long the holder is silent: its network may be cut while its stages run.
        return ReportVerdict.WAITS if is_alive and not heard_since_asked else ReportVerdict.COPY
    if message.boot_id == holder.boot_id and message.start_seq != holder.start_seq:
        if message.start_seq > holder.start_seq:
            return ReportVerdict.TAKEN
        # A replaced process ends its last connection; one that connects again is alive.
        return ReportVerdict.COPY if opened_since else ReportVerdict.FENCED
    if is_alive:
        return ReportVerdict.COPY if heard_since_asked else ReportVerdict.WAITS
    return ReportVerdict.FENCED if message.start_seq < holder.start_seq else ReportVerdict.TAKEN


def is_of_another_machine(one: Incarnation, other: Incarnation) -> bool:
    """Whether two incarnations are on different machines, as far as both report theirs."""
    return bool(one.machine_id and other.machine_id) and one.machine_id != other.machine_id


def admits(node: Node, message: Report, caller: Caller) -> tuple[ReportVerdict, Told]:
    """Judge a report of ``node``, which is locked; if it is taken, its incarnation speaks for the node from now on.

    For a copy, a sentence for people is returned too.
    """
    speaker = Incarnation(message.incarnation, message.start_seq, message.boot_id, message.machine_id)
    holder = Incarnation(node.incarnation, node.start_seq, node.boot_id, node.machine_id)
    silent_s, asked, opened_since = 0.0, False, False
    if speaker.name != holder.name and holder.name and speaker.name:
        now = now_in_database()
        silent_s = (now - node.last_report_at).total_seconds() if node.last_report_at else 1e9
        asked = bool(caller.asked_at and node.last_report_at and node.last_report_at > caller.asked_at)
        opened_since = bool(node.incarnation_at and caller.opened_at and caller.opened_at > node.incarnation_at)
        caller.asked_at = caller.asked_at or now
    verdict = judge(
        speaker,
        message.seq,
        holder,
        node.seq,
        silent_s=silent_s,
        patience_s=patience_s(),
        heard_since_asked=asked,
        opened_since=opened_since,
    )
    if verdict is ReportVerdict.TAKEN and (speaker.name, speaker.boot_id) != (holder.name, holder.boot_id):
        node.incarnation, node.machine_id = speaker.name, speaker.machine_id
        node.incarnation_at = Now()
        if speaker.boot_id != holder.boot_id:
            node.booted_at = Now()
        node.save(update_fields=["incarnation", "machine_id", "incarnation_at", "booted_at"])
    return verdict, why_copied(speaker, holder) if verdict is ReportVerdict.COPY else Told()


def patience_s() -> float:
    """Seconds that the former incarnation must be silent before one from another machine may succeed it."""
    return max(LEAST_SILENCE_S, PERIODS_OF_SILENCE * float(settings.LINK_TIMERS.get("report_s", 5.0)))


def why_copied(other: Incarnation, holder: Incarnation) -> Told:
    """Return a sentence for people about a second agent with the identity of a node."""
    return told(clause("CopiedElsewhere" if is_of_another_machine(other, holder) else "Copied"))
