"""Parts as jobs of a Ray cluster: its Jobs REST API alone, nothing of Ray is imported here.

The submission id of a job is the label of its part, and Ray takes an id once: so a second submission is refused, and a
lost answer is no doubt. The job runs our supervisor in the part's run folder, which its node must see: logs, exit
codes, the time limit and the grace are the supervisor's. It looks for an order to stop every two seconds, so Ray, which
can send no signal, need not wake it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shlex
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from agents.decode import BoundedDecoder, Undecodable
from agents.delegated import (
    EngineGround,
    EngineSilent,
    ForeignJob,
    ForeignOrder,
    ForeignState,
    SubmissionRefused,
    label,
)
from agents.delegated.package import START_GUARDED
from agents.delegated.shared_folder import Program, SharedFolderEngine
from agents.ends import clause, told
from agents.protocol import Clause, Exit
from agents.supervisor.small_file import content

PATIENCE_S: Final = 5.0
MOST_S: Final = 20.0
MOST_READ: Final = 32 << 20
# For Ray's own stop, once the supervisor has had its grace: it tells all processes, and kills them after so long.
KILL_S: Final = 1
# Ray keeps ended jobs for ever. Ours are deleted so long after their end, a few for each look.
KEPT_S: Final = 3_600.0
MOST_DELETED: Final = 5
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_QUEUED, _RUNNING = "PENDING", "RUNNING"
_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_IS_THERE: Final = "already exists"
# What Ray says of a job whose node or whose supervisor's actor went away.
_LOST: Final = ("died", "node", "Node", "actor", "Actor")
Share = Annotated[float, Meta(gt=0, le=1e6)]


class RayShapeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is reserved in Ray for a shape beside cores and memory: ``resources`` for the whole job, and ``device`` is
    Ray's name of its accelerators, of which the job gets as many as it has; ``GPU`` if empty."""

    resources: Annotated[dict[Annotated[str, Meta(min_length=1, max_length=100)], Share], Meta(max_length=10)] = (
        msgspec.field(default_factory=dict)
    )
    device: Annotated[str, Meta(pattern=r"\A[A-Za-z][A-Za-z0-9_]{0,39}\Z")] = "GPU"


class RayDelegation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the Ray is, a file with its token, the certificate of its authority, and the interpreter on its nodes."""

    url: Annotated[str, Meta(pattern=r"\Ahttps?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,200})?\Z")]
    token_file: str = ""
    authority: str = ""
    python: Program = "/usr/bin/python3"


class RayJob(msgspec.Struct, frozen=True):
    """One entry of Ray's list of jobs, of which there are also those of others. Times in milliseconds."""

    submission_id: str | None = None
    status: str = ""
    message: str | None = None
    start_time: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    end_time: Annotated[int, Meta(ge=0, le=2**53)] | None = None


_jobs = BoundedDecoder[list[RayJob]](list[RayJob])
_job = BoundedDecoder[RayJob](RayJob)


@dataclass(frozen=True, slots=True)
class RayAnswer:
    status: int
    body: bytes

    @property
    def is_well(self) -> bool:
        return 200 <= self.status < 300

    @property
    def said(self) -> str:
        return " ".join(self.body[-2_000:].decode(errors="replace").replace("\0", "").split())[-250:]


class RayEngine(SharedFolderEngine[RayDelegation, RayShapeOptions]):
    """See :class:`agents.delegated.DelegatedEngine`."""

    title = "Ray"
    takes_again = False
    settle_s = 5.0

    def __init__(self, ground: EngineGround) -> None:
        super().__init__(ground, RayDelegation, RayShapeOptions)
        self.parts: SplitResult = urlsplit(self.options.url)
        self.context = None
        if self.parts.scheme == "https":
            try:
                self.context = ssl.create_default_context(cafile=self.options.authority or None)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"the authority of Ray cannot be read: {error}") from error

    # -- starting

    def submit(self, order: ForeignOrder) -> str:
        words = [self.options.python, "-I", "-S", "-c", START_GUARDED, str(self.package), order.folder]
        shape = self.shapes.get(order.shape, RayShapeOptions())
        resources = dict(shape.resources)
        asked: dict[str, Any] = {
            "submission_id": order.label,
            "entrypoint": f"exec {shlex.join(words)} 2>{shlex.quote(order.folder + '/foreign.log')}",
            "entrypoint_num_cpus": order.cpus,
            "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(KILL_S)}},
        }
        if order.memory_bytes:
            asked["entrypoint_memory"] = order.memory_bytes
        if order.devices and shape.device == "GPU":
            asked["entrypoint_num_gpus"] = order.devices
        elif order.devices:
            resources[shape.device] = resources.get(shape.device, 0) + order.devices
        if resources:
            asked["entrypoint_resources"] = resources
        answer = self._ask("POST", "/api/jobs/", asked)
        if answer.is_well or (order.label in answer.said and _IS_THERE in answer.said):
            return order.label
        # Of a fault of its own Ray may say so and have started the job all the same; an unknown token, or too many
        # requests, are no fault of the order.
        is_sure = answer.status in (400, 404, 413, 422)
        raise (SubmissionRefused if is_sure else EngineSilent)(_said(answer))

    # -- looking

    def jobs(self) -> list[ForeignJob]:
        answer = self._ask("GET", "/api/jobs/")
        if not answer.is_well:
            raise EngineSilent(_said(answer))
        try:
            listed = _jobs.read(answer.body)
        except Undecodable:
            raise _nonsense(answer) from None
        mine = [(mark, job) for job in listed if (mark := label.read(job.submission_id or "")) is not None]
        mine = [(mark, job) for mark, job in mine if mark.tag == self.tag]
        found = [_read(mark, job) for mark, job in mine]
        for old in _old([job for _, job in mine])[:MOST_DELETED]:
            self._ask("DELETE", f"/api/jobs/{old}")
        return found

    def find(self, order: ForeignOrder) -> ForeignJob | None:
        """Ask for it by its name: the list is of a moment before."""
        answer = self._ask("GET", f"/api/jobs/{order.label}")
        if answer.status == 404:
            return None
        if not answer.is_well:
            raise EngineSilent(_said(answer))
        try:
            job = _job.read(answer.body)
        except Undecodable:
            raise _nonsense(answer) from None
        mark = label.read(order.label)
        assert mark is not None, "it is our own label"
        return _read(mark, job)

    def troubles(self) -> Sequence[Clause]:
        return ()

    # -- stopping

    def ask_to_stop(self, job: ForeignJob, order: ForeignOrder, grace_s: float) -> None:
        """Nothing: its supervisor looks for the request every two seconds, and sees to the grace."""

    def kill(self, job: ForeignJob) -> None:
        answer = self._ask("POST", f"/api/jobs/{job.handle}/stop")
        if not answer.is_well and answer.status != 404:
            raise EngineSilent(_said(answer))

    def signal(self, job: ForeignJob, order: ForeignOrder, name: str) -> None:
        """Let the supervisor signal the main process, when it looks next: Ray can send no signal."""
        self.order_signal(order, name)

    # -- the way to it

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> RayAnswer:
        """Send one request. Raises EngineSilent where no answer came in time, or one that is too long."""
        host, port = str(self.parts.hostname), self.parts.port or (443 if self.context else 80)
        headers = {"Accept": "application/json", **({"Content-Type": "application/json"} if body else {})}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        cutter = threading.Timer(MOST_S, _cut, [connection])
        cutter.daemon = True
        cutter.start()
        try:
            connection.sock = socket.create_connection((host, port), timeout=PATIENCE_S)
            if self.context is not None:
                connection.sock = self.context.wrap_socket(connection.sock, server_hostname=host)
            sent = None if body is None else msgspec.json.encode(body)
            connection.request(method, self.parts.path.rstrip("/") + path, body=sent, headers=headers)
            response = connection.getresponse()
            answer = RayAnswer(response.status, response.read(MOST_READ + 1))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineSilent(clause("AsTold", words=str(error)[:200] or type(error).__name__)) from None
        finally:
            cutter.cancel()
            connection.close()
        if len(answer.body) > MOST_READ:
            raise EngineSilent(clause("AnswerTooLong", source="Ray", most_bytes=MOST_READ))
        return answer

    def _token(self) -> str:
        """Return the token, read anew: it may be renewed. Raises EngineSilent if it cannot be read."""
        if not self.options.token_file:
            return ""
        # A mounted Secret is a link.
        token = (content(os.path.realpath(self.options.token_file)) or b"").decode(errors="replace").strip()
        if not _TOKEN.fullmatch(token):
            raise EngineSilent(clause("AsTold", words=f"{self.options.token_file} has no token"))
        return token


def _cut(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, AttributeError):
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def _read(mark: label.Label, job: RayJob) -> ForeignJob:
    """Read one of our jobs. Raises EngineSilent for one that makes no sense."""
    handle = str(mark)
    if job.status == _QUEUED:
        return ForeignJob(mark.part, mark.epoch, mark.fence, handle, ForeignState.QUEUED)
    if job.status == _RUNNING:
        return ForeignJob(mark.part, mark.epoch, mark.fence, handle, ForeignState.RUNNING)
    if job.status not in _ENDED:
        raise EngineSilent(clause("ForeignNonsense", source="Ray", words=repr(job.status[:60])))
    # A supervisor ends well and tells of its part in the folder: what failed here is the supervisor, or its node.
    is_lost = job.status == "FAILED" and any(word in (job.message or "")[:500] for word in _LOST)
    end: Any = {
        "cause": "NODE_FAIL" if is_lost else "SUPERVISOR_LOST",
        **told(clause("ForeignEnded", engine="Ray", state=job.status)),
    }
    return ForeignJob(mark.part, mark.epoch, mark.fence, handle, ForeignState.ENDED, exit=Exit(**end))


def _old(mine: Sequence[RayJob]) -> Sequence[str]:
    """Return our jobs that ended long before the newest began, by Ray's clock, which may not be this host's."""
    newest_ms = max((job.start_time or 0 for job in mine), default=0)
    ended = [job for job in mine if job.status in _ENDED]
    old = [job for job in ended if (job.end_time or job.start_time or 0) < newest_ms - KEPT_S * 1_000]
    return [str(job.submission_id) for job in old]


def _said(answer: RayAnswer) -> Clause:
    return clause("AsTold", words=f"{answer.status} {answer.said}")


def _nonsense(answer: RayAnswer) -> EngineSilent:
    return EngineSilent(clause("ForeignNonsense", source="Ray", words=repr(answer.body[:60])))


ENGINE = RayEngine
