"""The wire shapes that server and agent exchange; the only file of this room that the control plane imports.

Two messages join the two sides, and both carry full state: :class:`Report` goes up, :class:`Desired` comes down.
Any of them may be lost, doubled, late or out of order without harm. They travel as JSON over one WebSocket per agent.
Logs and telemetry travel as msgpack on their own HTTP calls (:class:`LogBatch`, :class:`TelemetryBatch`), so that a
heartbeat never waits behind a log.

Durations cross the wire, never dates: no decision compares the clocks of two machines. Unknown fields are ignored, and
every field added later has a default, so that an older side can still read a newer message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

import msgspec

PROTO: Final = 1
MIN_PROTO: Final = 1

CLOSE_UNAUTHENTICATED: Final = 4001
CLOSE_PROTOCOL: Final = 4002
CLOSE_SECOND_INCARNATION: Final = 4009


class Phase(IntEnum):
    """How far a part has come. A report with a lower or equal phase changes nothing; ``ENDED`` is final."""

    ASSIGNED = 10
    ACKED = 20
    STARTING = 30
    RUNNING = 40
    STOPPING = 50
    ENDED = 90


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """A connection from one device to a peer device or to the host."""

    peer: str
    type: str
    gbps: float | None = None


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schedulable unit as an agent found it.

    ``uuid`` is stable across restarts and unique in the installation. A CPU device is one NUMA node: its capacity is
    cores x 1000 milli. Any other device has 1000 milli. ``features`` holds peak rates by precision and the like, e.g.
    ``{"bf16_tflops": 989.0, "memory_gbps": 3350.0, "watts": 700.0}``.
    """

    uuid: str
    kind: str
    vendor: str
    model: str
    index: int
    memory_bytes: int
    capacity_milli: int = 1000
    numa: int | None = None
    pci: str | None = None
    simulated: bool = False
    health: Literal["OK", "DEGRADED", "UNHEALTHY", "LOST"] = "OK"
    health_reason: str = ""
    features: dict[str, float] = msgspec.field(default_factory=dict)
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    links: list[Link] = msgspec.field(default_factory=list)


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a host is and has. Sent only when its hash changed or the server asks for it."""

    hostname: str
    os: str
    arch: str
    cpus: int
    memory_bytes: int
    isolation: str
    runs_as: str
    address: str = "127.0.0.1"
    simulated: bool = False
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    devices: list[Device] = msgspec.field(default_factory=list)


class InventoryRef(msgspec.Struct, frozen=True, omit_defaults=True):
    hash: str
    full: Inventory | None = None


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a part ended. ``code`` or ``signal`` is set when its process was waited for.

    ``cause`` is empty for a plain exit 0, else one of the words of ``scheduler.core.lifecycle.Cause`` that an agent can
    know: EXIT_CODE SIGNAL TIMEOUT OUT_OF_MEMORY SUPERVISOR_LOST NODE_REBOOT LAUNCH_FAILED CHECKPOINTED LEASE_EXPIRED.
    ``stopped`` tells that a stop notice had been given: an exit 0 after it is a stop, not a completion.
    """

    code: int | None = None
    signal: int | None = None
    cause: str = ""
    detail: str = ""
    stopped: bool = False
    ran_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resumable point that the stage confirmed; ``age_s`` is how long ago."""

    step: int
    path: str
    age_s: float = 0.0


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest values that the stage reported through ``switchyard.runtime``."""

    step: int | None = None
    total: int | None = None
    phase: str = ""
    values: dict[str, float | int | str] = msgspec.field(default_factory=dict)


class Here(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part that this agent knows. ``logs`` maps ``"<rank>.<out|err>"`` to the bytes written so far."""

    part: str
    attempt: str
    epoch: int
    phase: int
    spec_rev: int = 1
    pid: int | None = None
    pid_start: int | None = None
    substate: str = ""
    exit: Exit | None = None
    logs: dict[str, int] = msgspec.field(default_factory=dict)
    devices: list[str] = msgspec.field(default_factory=list)
    checkpoints: list[Checkpoint] = msgspec.field(default_factory=list)
    progress: Progress | None = None


class DeviceError(msgspec.Struct, frozen=True, omit_defaults=True):
    uuid: str
    code: str
    detail: str = ""


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is not as it should be on the host; each note is a sentence for people."""

    disk_pressure: bool = False
    device_errors: list[DeviceError] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Agent to server: everything that is here. The node's identity comes from its credential, never from this."""

    proto: int
    agent: str
    boot_id: str
    start_seq: int
    seq: int
    seen_generation: int
    inventory: InventoryRef
    here: list[Here] = msgspec.field(default_factory=list)
    conditions: Conditions = msgspec.field(default_factory=Conditions)


class DeviceClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part's hold on a share of one device of this node."""

    uuid: str
    kind: str
    vendor: str
    model: str
    index: int
    milli: int
    memory_bytes: int
    simulated: bool = False


class PartSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that an agent needs to run one part. ``argv`` is executed as it is; no shell is added here.

    ``time_limit_s`` is what is left for this attempt. ``lease_s`` is set only under ``on_node_lost: requeue``: the shim
    stops the part by itself when no report was answered for that long. Directories are absolute paths on the node.
    """

    job: int
    job_name: str
    stage: str
    stage_kind: str
    project: str
    attempt_number: int
    argv: list[str]
    rank: int = 0
    nodes: list[str] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    bundle: str | None = None
    devices: list[DeviceClaim] = msgspec.field(default_factory=list)
    cpus_milli: int = 1000
    memory_bytes: int = 0
    time_limit_s: float | None = None
    lease_s: float | None = None
    grace_s: float = 30.0
    stop_to: Literal["main", "group"] = "main"
    checkpoint_dir: str = ""
    output_dir: str = ""
    input_dir: str = ""
    resume_from: str = ""
    master_addr: str = "127.0.0.1"
    master_port: int = 0


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order. ``run`` carries the spec; ``stop`` carries the grace and the reason; ``signal`` carries the signal."""

    part: str
    attempt: str
    epoch: int
    do: Literal["run", "stop", "signal"]
    spec_rev: int = 1
    spec: PartSpec | None = None
    grace_s: float = 30.0
    why: str = ""
    signal: str = ""


class Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    part: str
    epoch: int
    code: str


class Timers(msgspec.Struct, frozen=True, omit_defaults=True):
    """All timers of the link, in seconds; the server owns them."""

    report_s: float = 5.0
    suspect_s: float = 15.0
    lost_s: float = 45.0
    lease_s: float = 60.0
    telemetry_s: float = 1.0


class Desired(msgspec.Struct, frozen=True, omit_defaults=True):
    """Server to agent: everything that is wanted on the node, as of ``generation``. Older generations are ignored.

    ``accepted`` maps a part to the phase that the server has recorded. A part in ``forget`` has been recorded as ended:
    the agent may drop it. A part in ``unknown`` is not known to the server: the agent keeps it and never kills it for
    that. Absence from ``wanted`` is not a stop.
    """

    generation: int
    wanted: list[Wanted] = msgspec.field(default_factory=list)
    accepted: dict[str, int] = msgspec.field(default_factory=dict)
    refused: list[Refused] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)
    forget: list[str] = msgspec.field(default_factory=list)
    timers: Timers = msgspec.field(default_factory=Timers)
    cluster: str = ""
    lineage: str = ""
    min_proto: int = MIN_PROTO
    want_inventory: bool = False


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes of one stream (``out`` or ``err``) of one rank, which start at ``offset``; at most 256 KiB."""

    part: str
    epoch: int
    rank: int
    stream: str
    offset: int
    data: bytes


class LogBatch(msgspec.Struct, frozen=True):
    chunks: list[LogChunk]


class LogCommit(msgspec.Struct, frozen=True):
    """What the server holds of one stream after a batch: the agent goes on from ``committed``."""

    part: str
    rank: int
    stream: str
    committed: int
    refused: str = ""


class LogReceipt(msgspec.Struct, frozen=True):
    streams: list[LogCommit]


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of one device, ``age_s`` before it was sent. ``None`` means that the vendor does not tell it."""

    uuid: str
    age_s: float
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class PartSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the processes of one part used: ``cpu`` in cores, resident memory in bytes."""

    part: str
    age_s: float
    cpu: float | None = None
    rss_bytes: int | None = None


class TelemetryBatch(msgspec.Struct, frozen=True):
    devices: list[DeviceSample]
    parts: list[PartSample]


class Enrol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new agent asks to join with a one-time or n-time token."""

    token: str
    name: str


class Enrolled(msgspec.Struct, frozen=True):
    """The answer: who the node is now, and the secret that proves it. The secret is never sent again."""

    node: str
    name: str
    credential: str


# Paths under the server's address.
LINK_PATH: Final = "/agent/v1/link"
ENROL_PATH: Final = "/agent/v1/enrol"
LOGS_PATH: Final = "/agent/v1/logs"
TELEMETRY_PATH: Final = "/agent/v1/telemetry"
BUNDLE_PATH: Final = "/agent/v1/bundles/{sha256}"
