"""Pilots as batch jobs of a Slurm cluster: ``sbatch``, ``squeue`` and ``scancel``, as the user that runs the worker.

Name and comment of a job are the pilot's label, and ``--dependency=singleton`` lets only one job of a name run at once.
Which cluster is meant says ``SLURM_CONF`` in the worker's environment, as for every program of Slurm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from controlplane.providers import programs, script, typed
from controlplane.providers.engine import (
    LABEL,
    EngineFault,
    EngineRefused,
    ForeignPhase,
    ForeignPilot,
    PilotOrder,
)

_GRES: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9_]*(:[A-Za-z0-9_.-]+){0,2}(,[A-Za-z][A-Za-z0-9_]*(:[A-Za-z0-9_.-]+){0,2})*"
)
_CONSTRAINT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_&|,!.()*-]{0,199}")
_PARTITIONS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,-]{0,199}")
_OWN: Final[Mapping[str, typed.Check]] = {
    "partition": typed.is_text(_PARTITIONS),
    "account": typed.is_text(typed.NAME),
    "qos": typed.is_text(typed.NAME),
    "reservation": typed.is_text(typed.NAME),
    "constraint": typed.is_text(_CONSTRAINT),
}
SETTINGS: Final[Mapping[str, typed.Check]] = {
    **script.SETTINGS,
    **_OWN,
    "exclusive": typed.is_flag,
    "log_below": typed.is_path,
    "most": typed.is_whole(1, 10_000),
}
NEEDED: Final = ("python",)
SHAPE: Final[Mapping[str, typed.Check]] = {
    "gres": typed.is_text(_GRES),
    "partition": _OWN["partition"],
    "constraint": _OWN["constraint"],
}
_QUEUED: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
# A job that completes may still have processes.
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
_ENDED: Final = frozenset({
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED", "SPECIAL_EXIT",
})  # fmt: skip
_HANDLE: Final = re.compile(r"[0-9]{1,10}")
# What sbatch says where the controller did not take the job; anything else may have been taken.
_REFUSED: Final = "Batch job submission failed"
_UNSURE: Final = ("Unable to contact", "timed out", "Communication", "Zero Bytes", "Connection refused", "Socket")


class SlurmCluster:
    """The Slurm cluster that ``SLURM_CONF`` of this process names."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def up(self, order: PilotOrder) -> str:
        words = ["sbatch", "--parsable", *self._options(order)]
        printed = programs.run(words, given=script.of(order, self.given), more={script.TOKEN: order.token})
        if printed.code != 0:
            is_sure = _REFUSED in printed.err and not any(words in printed.err for words in _UNSURE)
            raise (EngineRefused if is_sure else EngineFault)("SlurmSaid", printed.err)
        # With several clusters: id;cluster.
        handle = printed.out.strip().partition(";")[0]
        if not _HANDLE.fullmatch(handle):
            raise EngineFault("AnswerUnreadable", "sbatch")
        return handle

    def _options(self, order: PilotOrder) -> list[str]:
        shape, asked = order.shape, {**self.given, **order.shape}
        below = self.given.get("log_below")
        options = {
            "job-name": order.label,
            "comment": order.label,
            "dependency": "singleton",
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(shape["cpus"]),
            "mem": f"{math.ceil(shape['memory_gib'] * 1024)}M",
            # In minutes; Slurm rounds up too.
            "time": str(max(1, math.ceil(order.hours * 60))),
            # The value is in the environment of sbatch: a command line can be read by everybody.
            "export": script.TOKEN,
            "signal": "B:TERM@60",
            "output": f"{below}/{order.label}.log" if below else "/dev/null",
            "chdir": "/",
            **{name: asked[name] for name in (*_OWN, "gres") if name in asked},
        }
        flags = ["--no-requeue", *(["--exclusive"] if self.given.get("exclusive") else [])]
        return [*(f"--{name}={value}" for name, value in options.items()), *flags]

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        if not handles:
            return
        # The script is told and ends its stages in order; a job that still waits has no script.
        ways = [[]] if force else [["--batch", "--signal=TERM"], ["--state=PENDING"]]
        for way in ways:
            printed = programs.run(["scancel", "--quiet", *way, *handles])
            if printed.code != 0 and not _is_over(printed.err):
                raise EngineFault("SlurmSaid", printed.err)

    def list(self, tag: str) -> list[ForeignPilot]:
        printed = programs.run(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%e|%k|%j"])
        if printed.code != 0:
            raise EngineFault("SlurmSaid", printed.err)
        found = [_read(line) for line in printed.out.splitlines()]
        return [each for each in found if each is not None and each.label.startswith(f"yard-{tag}-")]

    def price(self, shape: Mapping[str, Any]) -> float:
        return float(shape.get("price", 0.0))

    def limits(self) -> int | None:
        most: int | None = self.given.get("most")
        return most


def _is_over(said: str) -> bool:
    """Whether scancel found nothing to end."""
    return not said or "Invalid job id" in said or "already completing or completed" in said


def _read(line: str) -> ForeignPilot | None:
    """Read one line of squeue; None for a job that is no pilot. Raises EngineFault for a line that makes no sense."""
    fields = line.strip().split("|", 4)
    if len(fields) != 5:
        raise EngineFault("AnswerUnreadable", "squeue")
    handle, state, ends, comment, name = fields
    label = next((each for each in (comment, name) if LABEL.fullmatch(each)), None)
    if label is None:
        return None
    phase = next(
        (phase for phase, words in zip(ForeignPhase, (_QUEUED, _RUNNING, _ENDED), strict=True) if state in words), None
    )
    if phase is None or not _HANDLE.fullmatch(handle):
        raise EngineFault("AnswerUnreadable", "squeue")
    return ForeignPilot(label, handle, phase, _moment(ends) if phase is ForeignPhase.RUNNING else None)


def _moment(text: str) -> float | None:
    if text in ("N/A", "Unknown", "NONE", ""):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise EngineFault("AnswerUnreadable", "squeue") from None


def engine(given: Mapping[str, Any]) -> SlurmCluster:
    return SlurmCluster(given)
