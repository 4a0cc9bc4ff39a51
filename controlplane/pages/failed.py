"""The card of a failed stage: the kind of its failure, what usually helps, and the last lines of its output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy

from controlplane.jobs import logs
from controlplane.jobs.failures import MOST_CHARACTERS, Failure, kind_of
from controlplane.jobs.log_blocks import StorageSilent
from controlplane.jobs.models import Part

LINES: Final = 30

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


def card(stage: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a failed stage. ``lines`` is the end of its error output, or of all its output without one."""
    part = _failed_part(stage)
    output = _output(part) if part else ""
    title, advice = KINDS[kind_of(stage["cause"], output)]
    return {
        **stage,
        "title": title,
        "advice": advice,
        "lines": "\n".join(output.splitlines()[-LINES:]),
        "where": part.node.name if part else "",
        "rank": part.rank if part else 0,
        "at": part.attempt.number if part else 0,
    }


def _failed_part(stage: Mapping[str, Any]) -> Part | None:
    """The part of the newest attempt that failed first, or its first rank."""
    found = Part.objects.filter(attempt__stage=stage["id"]).select_related("node", "attempt")
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
    # Without colours and other sequences of a terminal.
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\r(?!\n)", "", content.decode(errors="replace"))
