"""Parts as batch jobs of a Slurm cluster: ``sbatch``, ``squeue``, ``sacct``, ``scancel`` and ``sinfo``.

The state folder of the agent lies on a file system that the cluster's nodes see at the same path. The batch script is
the agent's own supervisor (:mod:`agents.supervisor.foreign`), which writes logs and end there: so the end is known long
after Slurm has forgotten the job, and of two jobs of one part only the first begins its command.

Name and comment of a job are its label: ``squeue`` tells both, ``sacct`` the name. Nothing of a job's variables stands
on a command line or in a comment.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from agents.delegated import (
    EngineGround,
    EngineSilent,
    ForeignJob,
    ForeignOrder,
    ForeignState,
    SubmissionRefused,
    label,
    program,
)
from agents.delegated.package import START
from agents.delegated.shared_folder import Program, SharedFolderEngine
from agents.ends import clause, told
from agents.protocol import Clause, Exit

Word = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.,-]{0,199}\Z")]
Constraint = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_&|,!.()*-]{0,199}\Z")]
Gres = Annotated[str, Meta(pattern=r"\A[A-Za-z][A-Za-z0-9_]*(:[A-Za-z0-9_.-]{1,60})?\Z")]

_QUEUED: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
# A job that completes may still have processes.
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
# States of an end, and the cause that each is where no supervisor told of one.
_ENDED: Final[Mapping[str, str]] = {
    "COMPLETED": "SUPERVISOR_LOST",
    "FAILED": "SUPERVISOR_LOST",
    "CANCELLED": "SUPERVISOR_LOST",
    "REVOKED": "SUPERVISOR_LOST",
    "SPECIAL_EXIT": "SUPERVISOR_LOST",
    "TIMEOUT": "TIMEOUT",
    "DEADLINE": "TIMEOUT",
    "NODE_FAIL": "NODE_FAIL",
    "BOOT_FAIL": "NODE_FAIL",
    "PREEMPTED": "PREEMPTED",
    "OUT_OF_MEMORY": "OUT_OF_MEMORY",
}
_HANDLE: Final = re.compile(r"[0-9]{1,10}")
# What sbatch says where the controller did not take the job; anything else may have been taken.
_REFUSED: Final = "Batch job submission failed"
_UNSURE: Final = (
    "Unable to contact", "timed out", "Communication", "Zero Bytes", "Connection refused", "Socket", "temporarily",
    "Too many", "limit", "Limit", "slurmctld", "try again",
)  # fmt: skip
# States of nodes that take no job now or soon.
_CLOSED: Final = ("down", "drain", "fail", "maint", "unknown", "future", "power")
SINFO_EVERY_S: Final = 30.0
# For the job to end by itself before Slurm ends it.
_SPARE_S: Final = 60


class ShapeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is asked of Slurm for a shape. ``gres`` is the name and type of its accelerators, without a number."""

    partition: Word = ""
    constraint: Constraint = ""
    gres: Gres = ""


class SlurmDelegation(ShapeOptions, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is asked for all jobs. ``python`` is the interpreter on the cluster's nodes."""

    account: Word = ""
    qos: Word = ""
    reservation: Word = ""
    exclusive: bool = False
    python: Program = "/usr/bin/python3"


class SlurmEngine(SharedFolderEngine[SlurmDelegation, ShapeOptions]):
    """See :class:`agents.delegated.DelegatedEngine`. ``SLURM_CONF`` names the cluster, as for all of Slurm."""

    title = "Slurm"
    takes_again = True
    settle_s = 10.0

    def __init__(self, ground: EngineGround) -> None:
        super().__init__(ground, SlurmDelegation, ShapeOptions)
        self._has_accounting = True
        self._troubles: list[Clause] = []
        self._sinfo_at = float("-inf")

    # -- starting

    def submit(self, order: ForeignOrder) -> str:
        given = f'#!/bin/sh\nexec {self.options.python} -I -S -c "{START}" {self.package} {_quoted(order.folder)}\n'
        answer = program.ask(["sbatch", "--parsable", *self._words(order)], given)
        if answer.code != 0:
            is_sure = _REFUSED in answer.err and not any(words in answer.err for words in _UNSURE)
            raise (SubmissionRefused if is_sure else EngineSilent)(_said(answer.err))
        # With several clusters: id;cluster.
        handle = answer.out.strip().partition(";")[0]
        if not _HANDLE.fullmatch(handle):
            raise _nonsense("sbatch", answer.out)
        return handle

    def _words(self, order: ForeignOrder) -> list[str]:
        shape, spec = self.shapes.get(order.shape, ShapeOptions()), order.spec
        asked: dict[str, str] = {
            "job-name": order.label,
            "comment": order.label,
            "nodes": "1",
            "ntasks": "1",
            "cpus-per-task": str(order.cpus),
            # All that sbatch has here is what finds Slurm (``program.PASSED``). A list of names would make slurmd load
            # the user's login environment first, which takes a second.
            "export": "ALL",
            "output": f"{order.folder}/foreign.log",
            "chdir": "/",
            "signal": f"B:TERM@{_SPARE_S}",
            "partition": shape.partition or self.options.partition,
            "constraint": shape.constraint or self.options.constraint,
            "account": self.options.account,
            "qos": self.options.qos,
            "reservation": self.options.reservation,
        }
        if order.memory_bytes:
            asked["mem"] = f"{math.ceil(order.memory_bytes / 2**20)}M"
        if spec.time_limit_s is not None:
            # In minutes, rounded up: the supervisor ends it before, to the second.
            asked["time"] = str(math.ceil((spec.time_limit_s + spec.grace_s + 2 * _SPARE_S) / 60))
        if order.devices:
            asked["gres"] = f"{shape.gres or self.options.gres or 'gpu'}:{order.devices}"
        flags = ["--no-requeue", "--open-mode=append", *(["--exclusive"] if self.options.exclusive else [])]
        return [*(f"--{name}={value}" for name, value in asked.items() if value), *flags]

    # -- looking

    def jobs(self) -> list[ForeignJob]:
        answer = program.ask(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%S|%r|%j"])
        if answer.code != 0:
            raise EngineSilent(_said(answer.err))
        found = (self._read(line) for line in answer.out.splitlines())
        self._look_at_nodes()
        return [job for job in found if job is not None]

    def _read(self, line: str) -> ForeignJob | None:
        """Read one line of squeue; None for a job that is not ours. Raises EngineSilent for one that makes no sense."""
        fields = line.strip().split("|", 4)
        mark = label.read(fields[-1])
        if mark is None or mark.tag != self.tag:
            return None
        if len(fields) != 5:
            raise _nonsense("squeue", line)
        handle, state, starts, why, _ = fields
        return _job(mark, handle, state, starts, why, "squeue")

    def find(self, order: ForeignOrder) -> ForeignJob | None:
        """Look for it in the accounting, where there is one."""
        if not self._has_accounting:
            return None
        answer = program.ask([
            "sacct", "--noheader", "--parsable2", "--allocations", "--starttime=now-30days", f"--name={order.label}",
            "--format=JobIDRaw,State,JobName%150",
        ])  # fmt: skip
        if answer.code != 0:
            if "disabled" in answer.err:
                self._has_accounting = False
                return None
            raise EngineSilent(_said(answer.err))
        for line in reversed(answer.out.splitlines()):
            handle, _, rest = line.strip().partition("|")
            state, _, name = rest.partition("|")
            if name == order.label and (mark := label.read(name)) is not None:
                # CANCELLED by 1000
                return _job(mark, handle, state.partition(" ")[0], "", "", "sacct")
        return None

    def _look_at_nodes(self) -> None:
        """Note whether any node takes jobs; drained ones are a condition of the node here, not a fault of a job."""
        if time.monotonic() - self._sinfo_at < SINFO_EVERY_S:
            return
        partition = [f"--partition={self.options.partition}"] if self.options.partition else []
        answer = program.ask(["sinfo", "--noheader", "--format=%a|%T", *partition])
        if answer.code != 0:
            raise EngineSilent(_said(answer.err))
        self._sinfo_at = time.monotonic()
        states = [line.strip().partition("|") for line in answer.out.splitlines()[:10_000]]
        is_open = any(up == "up" and not state.startswith(_CLOSED) and "*" not in state for up, _, state in states)
        shown = ", ".join(sorted({f"{state}" if up == "up" else up for up, _, state in states}))[:200]
        self._troubles = [] if is_open else [clause("ForeignDrained", engine=self.title, states=shown or "-")]

    def troubles(self) -> Sequence[Clause]:
        return self._troubles

    # -- stopping

    def ask_to_stop(self, job: ForeignJob, order: ForeignOrder, grace_s: float) -> None:
        """Wake its supervisor, which finds the request in the folder, and sees to the grace."""
        self._cancel("--batch", "--signal=USR1", job.handle)

    def kill(self, job: ForeignJob) -> None:
        self._cancel(job.handle)
        if job.state is ForeignState.RUNNING:
            self._cancel("--full", "--signal=KILL", job.handle)

    def signal(self, job: ForeignJob, order: ForeignOrder, name: str) -> None:
        """Let the supervisor signal the main process: of Slurm, every process of the job would get it."""
        if self.order_signal(order, name):
            self._cancel("--batch", "--signal=USR1", job.handle)

    def _cancel(self, *words: str) -> None:
        answer = program.ask(["scancel", "--quiet", *words])
        if answer.code != 0 and answer.err and not any(over in answer.err for over in _OVER):
            raise EngineSilent(_said(answer.err))


_OVER: Final = ("Invalid job id", "already completing or completed", "Job/step already")


def _job(mark: label.Label, handle: str, state: str, starts: str, why: str, source: str) -> ForeignJob:
    if not _HANDLE.fullmatch(handle):
        raise _nonsense(source, handle)
    if state in _QUEUED:
        reason = why if re.fullmatch(r"[A-Za-z0-9_,() .:-]{1,100}", why) and why != "None" else ""
        return ForeignJob(
            mark.part, mark.epoch, mark.fence, handle, ForeignState.QUEUED, starts_in_s=_wait_s(starts), why=reason
        )
    if state in _RUNNING:
        return ForeignJob(mark.part, mark.epoch, mark.fence, handle, ForeignState.RUNNING)
    if state not in _ENDED:
        raise _nonsense(source, state)
    end: Any = {"cause": _ENDED[state], **told(clause("ForeignEnded", engine="Slurm", state=state))}
    return ForeignJob(mark.part, mark.epoch, mark.fence, handle, ForeignState.ENDED, exit=Exit(**end))


def _wait_s(text: str) -> float | None:
    """Return in how many seconds a job is expected to start; None if Slurm does not say."""
    try:
        at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return max(0.0, min(at - time.time(), 10 * 365 * 86_400.0))


def _said(err: str) -> Clause:
    return clause("AsTold", words=err or "-")


def _nonsense(source: str, printed: str) -> EngineSilent:
    return EngineSilent(clause("ForeignNonsense", source=source, words=repr(printed[:60])))


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


ENGINE = SlurmEngine
