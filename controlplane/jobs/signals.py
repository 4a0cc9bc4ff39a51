"""Sends signals to the main processes of a job's running stages, such as the one by which a trainer saves.

A signal is an order beside the others of a part: its agent carries it out once, as soon as the process runs. Signals
that follow each other before the agent has seen the first become one, as signals do.
"""

from __future__ import annotations

from typing import Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from agents.protocol import Phase
from controlplane.accounts import audit
from controlplane.clauses import clause, told
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Job, Part

# Those that a program may handle. A job is ended by a cancellation, and paused by an adjustment, which are recorded.
SIGNALS: Final = (
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT", "SIGALRM", "SIGWINCH",
)  # fmt: skip


class NothingRuns(Exception):
    """Raised if no stage runs that could get a signal; the text says so."""


def send(job: Job, signal: str, actor: str, reason: str = "", *, stage: str = "") -> int:
    """Send one of :data:`SIGNALS` to the running stages of a job, or to one of them; return to how many processes.

    Raises NothingRuns.
    """
    with transaction.atomic():
        locked = service.lock([job.id])[job.id]
        chosen = {"stage__name": stage} if stage else {}
        live = Attempt.objects.filter(stage__job=job, ended_at=None, stop_why="", **chosen).select_related("stage")
        attempts = {attempt.id: attempt for attempt in live}
        parts = list(Part.objects.filter(attempt__in=attempts, ended_at=None, phase__lt=Phase.STOPPING))
        if not parts:
            said = _("nothing of job {number} runs that could get a signal")
            if stage:
                said = _("stage {stage} of job {number} does not run, or there is none")
            raise NothingRuns(said.format(number=locked.number, stage=stage[:63]))
        service.touch_nodes(part.node_id for part in parts)
        for part in parts:
            part.signal, part.signal_rev = signal, part.signal_rev + 1
        Part.objects.bulk_update(parts, ["signal", "signal_rev"])
        notes = [_note(locked, attempts[i], signal, actor, reason) for i in {part.attempt_id for part in parts}]
        service.settle([locked], notes, timezone.now())
        named = ("job", locked.number, f"#{locked.number}")
        audit.record("job.signal", named, after={"signal": signal, "processes": len(parts)}, reason=reason)
    return len(parts)


def _note(job: Job, attempt: Attempt, signal: str, actor: str, reason: str) -> service.Note:
    said = [clause("SignalSent", actor=actor, signal=signal, stage=attempt.stage.name)]
    if reason:
        said.append(clause("Aside", why=reason))
    params = {"signal": signal}
    return service.Note(job, "signal", told(*said), actor, attempt.stage.name, attempt.number, params)
