"""Why stages failed: the kind of failure, what usually helps, and the last lines of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.utils.translation import gettext_lazy

from controlplane.jobs import logs
from controlplane.jobs.failures import MOST_CHARACTERS, Failure, kind_of
from controlplane.jobs.log_blocks import StorageSilent
from controlplane.jobs.models import Job, Part, Stage
from controlplane.queries.logs import plain
from scheduler.core.model.lifecycle import State

LINES: Final = 30
MOST_STAGES: Final = 10

KINDS: Final[Mapping[Failure, tuple[Any, Any]]] = {
    Failure.DEVICE_MEMORY: (
        gettext_lazy("A device ran out of memory"),
        gettext_lazy("Use a smaller batch, shard the model further, or ask for devices with more memory."),
    ),
    Failure.HOST_MEMORY: (
        gettext_lazy("The host's memory ran out"),
        gettext_lazy("Ask for more memory, or use fewer data workers."),
    ),
    Failure.IMPORT: (
        gettext_lazy("A module or a library is missing"),
        gettext_lazy("Add it to the image or the environment, or correct the path."),
    ),
    Failure.COLLECTIVE: (
        gettext_lazy("A collective operation failed or timed out"),
        gettext_lazy("Often another rank failed first: read the logs of all ranks, then check the network."),
    ),
    Failure.DISK_FULL: (
        gettext_lazy("A disk or a quota of files is full"),
        gettext_lazy("Free some space, keep fewer checkpoints, or write elsewhere."),
    ),
    Failure.DEVICE: (
        gettext_lazy("A device reported an error"),
        gettext_lazy("Queue it again; if it fails on the same device, have an administrator check that device."),
    ),
    Failure.TIME_LIMIT: (
        gettext_lazy("Its time was up"),
        gettext_lazy("Ask for a longer time limit, or save checkpoints and go on from the newest."),
    ),
    Failure.PREEMPTED: (
        gettext_lazy("It made room for another job"),
        gettext_lazy("Save checkpoints, allow more attempts, or ask for a higher priority."),
    ),
    Failure.NODE: (
        gettext_lazy("Its node was lost"),
        gettext_lazy("Allow more attempts and save checkpoints, so that it goes on elsewhere."),
    ),
    Failure.LAUNCH: (
        gettext_lazy("It could not be started"),
        gettext_lazy("Check the command, the image and the working directory."),
    ),
    Failure.SETUP: (
        gettext_lazy("Its setup failed"),
        gettext_lazy(
            "The command was not started. The lines of its log between the marks of the setup usually say why."
        ),
    ),
    Failure.HELD_IDLE: (
        gettext_lazy("It held devices and did not use them"),
        gettext_lazy("Ask for fewer devices, or change its utilization_policy."),
    ),
    Failure.SIGNAL: (
        gettext_lazy("A signal ended it"),
        gettext_lazy("The process crashed, or something outside of it stopped it."),
    ),
    Failure.EXIT_CODE: (
        gettext_lazy("The command ended with an error"),
        gettext_lazy("The last lines of its output usually say why."),
    ),
    Failure.OTHER: (gettext_lazy("It failed"), ""),
}


class StageFailure(msgspec.Struct, frozen=True):
    """Why a stage failed. ``kind`` is judged by the recorded cause and the end of the output, ``advice`` is what
    usually helps. ``attempt``, ``rank`` and ``node`` tell where it failed first, if it has run; ``lines`` are the last
    thirty of the error output there, or of all output without one."""

    stage: str
    kind: str
    title: str
    advice: str
    cause: str
    exit_code: int | None
    attempt: int | None
    rank: int | None
    node: str
    lines: str


class FailureList(msgspec.Struct, frozen=True):
    """The failed stages of a job, at most the first ten, in their order."""

    results: list[StageFailure]


def of_job(job: Job, most: int = MOST_STAGES) -> FailureList:
    """Why the stages of this job failed."""
    failed = Stage.objects.filter(job=job, state=State.FAILED).order_by("index")
    return FailureList([_of_stage(stage) for stage in failed[:most]])


def _of_stage(stage: Stage) -> StageFailure:
    part = _failed_part(stage)
    output = _output(part) if part else ""
    kind = kind_of(stage.cause, output)
    title, advice = KINDS[kind]
    return StageFailure(
        stage=stage.name,
        kind=kind.value,
        title=str(title),
        advice=str(advice),
        cause=stage.cause,
        exit_code=stage.exit_code,
        attempt=part.attempt.number if part else None,
        rank=part.rank if part else None,
        node=part.node.name if part else "",
        lines="\n".join(output.splitlines()[-LINES:]),
    )


def _failed_part(stage: Stage) -> Part | None:
    """The part of the newest attempt that failed first, or its first rank."""
    found = Part.objects.filter(attempt__stage=stage).select_related("node", "attempt")
    newest = found.order_by("-attempt__number").first()
    if newest is None:
        return None
    failed = found.filter(attempt=newest.attempt, ended_at__isnull=False).exclude(exit__code=0)
    return failed.order_by("ended_at", "rank").first() or found.filter(attempt=newest.attempt).order_by("rank").first()


def _output(part: Part) -> str:
    stream = "err" if logs.size(part, "err") else "both"
    begin = max(0, logs.size(part, stream) - MOST_CHARACTERS)
    try:
        content = logs.read(part, stream, begin, MOST_CHARACTERS)
    except (logs.LogLost, StorageSilent):
        return ""
    return plain(content)
