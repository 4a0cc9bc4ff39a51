"""The messages between server and agent; the only module of the agent that the control plane imports.

Two messages connect the two sides, and both carry full state: :class:`Report` goes up, :class:`Desired` comes down. Any
of them may be lost, doubled, late or out of order without harm. They are sent as JSON over one WebSocket per agent.
Logs and telemetry are sent as msgpack in HTTP calls of their own (:class:`LogBatch`, :class:`TelemetryBatch`), so a
heartbeat never waits for a log.

What goes up is bounded here, once for all: every number has a range, every text and list a length, and no text contains
NUL. The server decodes with these types and reports what it refuses. Ranges are chosen so that all possible sums stay
exact: 2^50 bytes times 1,024 devices is far below 2^63, and one device's bytes are exact as a float too.

Durations are sent, never dates, because no decision compares the clocks of two machines. Unknown fields are ignored,
and every later field has a default, so an older side can still read a newer message.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from agents.ends import ENDS as ENDS

# Both sides mask by the same rule: the agent in logs, the server in job files.
from agents.masking import MASK as MASK
from agents.masking import tells_secret as tells_secret
from agents.notes import NOTES as NOTES
from agents.notes import clauses as clauses_of

PROTO: Final = 1
MIN_PROTO: Final = 1

# The name of a container image, as in the OCI distribution specification: [host[:port]/]path[:tag][@sha256:digest]. It
# never begins with a sign, so a program cannot take it for an option.
IMAGE: Final = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)

CLOSE_UNAUTHENTICATED: Final = 4001
CLOSE_PROTOCOL: Final = 4002
CLOSE_SECOND_INCARNATION: Final = 4009
CLOSE_NO_SESSION: Final = 4404


# The ranges of what goes up.
MOST_BYTES: Final = 2**50
MOST_MILLI: Final = 10_000_000
MOST_DEVICES: Final = 1_024
MOST_MOUNTS: Final = 64
MOST_RATE: Final = 1e9
# The named ports of a stage.
MOST_PORTS: Final = 16
_CLEAN = r"\A[^\x00]*\Z"

Name = Annotated[str, Meta(max_length=120, pattern=_CLEAN)]
"""What names something: a uuid, a model, a mount's type."""
Text = Annotated[str, Meta(max_length=16_384, pattern=_CLEAN)]
"""A sentence or a path; what is kept of it may be less."""
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
"""The size of something that is there."""
Counter = Annotated[int, Meta(ge=0, le=2**53)]
"""What only grows: bytes since a start, sequence numbers, offsets."""
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Small = Annotated[int, Meta(ge=0, le=32_767)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Code = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Milli = Annotated[int, Meta(ge=0, le=MOST_MILLI)]
Rate = Annotated[float, Meta(ge=0, le=MOST_RATE)]
"""A peak rate or a power, in the unit that its name says."""
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""A measurement; finite."""
Step = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""How far a stage says that it is."""
Value = Annotated[int, Meta(ge=-(2**53), le=2**53)] | Annotated[float, Meta(ge=-1e300, le=1e300)] | Text
"""What a stage reports under a name of its own; finite."""
Fields = Annotated[dict[Name, Value], Meta(max_length=256)]
ByName = Annotated[dict[Annotated[str, Meta(max_length=4_096, pattern=_CLEAN)], Counter], Meta(max_length=4_096)]
ByKind = Annotated[dict[Name, Number], Meta(max_length=64)]
# The values of scheduler.core.model.lifecycle.Cause, and empty for a plain exit 0.
Why = Literal[
    "", "EXIT_CODE", "SIGNAL", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "RESIZE", "MOVE", "REQUEUED", "CANCELLED",
    "DEADLINE", "NODE_FAIL", "NODE_REBOOT", "DEVICE_ERROR", "SUPERVISOR_LOST", "LAUNCH_FAILED", "LEASE_EXPIRED",
    "CHECKPOINTED", "DEPENDENCY", "NODE_UNFIT", "SETUP_FAILED", "HELD_IDLE", "EARLY_STOPPED", "OUT_OF_DISK",
]  # fmt: skip


class Phase(IntEnum):
    """The phase of a part. A report with a lower or equal phase changes nothing; ``ENDED`` is final."""

    ASSIGNED = 10
    ACKED = 20
    STARTING = 30
    RUNNING = 40
    STOPPING = 50
    ENDED = 90


# A code of ENDS or NOTES, and the values that its sentence shows.
Clause = tuple[Name, Fields]
Said = Annotated[list[Clause], Meta(max_length=64)]
"""A sentence in clauses; none from an agent that knows no clauses for it."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """A connection from one device to a peer device or to the host."""

    peer: Name
    type: Name
    gbps: Rate | None = None


class Partition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition of a device (a MIG instance, a vNPU): its profile, and the slots that it covers.

    ``start`` is its first slot, None if the driver does not report it. ``uuid`` is its name in the vendor's runtime;
    empty for one that is created when a stage starts.
    """

    profile: Name
    start: Small | None = None
    size: Annotated[int, Meta(ge=1, le=1_024)] = 1
    uuid: Name = ""


class Division(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device can be partitioned and is. ``profiles`` tells how many of each an empty device can have.

    ``made`` are the partitions that exist deliberately. ``makes`` tells that this agent creates and removes others for
    stages, and ``whole`` that it can then also give the device unpartitioned.
    """

    mode: Name
    profiles: Annotated[dict[Name, Small], Meta(max_length=256)] = msgspec.field(default_factory=dict)
    made: Annotated[list[Partition], Meta(max_length=256)] = msgspec.field(default_factory=list)
    makes: bool = False
    whole: bool = False


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schedulable unit as an agent found it.

    ``uuid`` is stable across restarts and unique in the installation. A CPU device is one NUMA node: its capacity is
    cores x 1000 milli. Any other device has 1000 milli. ``features`` has peak rates by precision and similar, e.g.
    ``{"bf16_tflops": 989.0, "memory_gbps": 3350.0, "watts": 700.0}``. ``sharing`` is how memory shares are enforced:
    ``hard`` (by the hardware, for its partitions), ``soft`` (by the agent, which measures memory by process, and ends
    parts that exceed their share) or ``none``; empty for a CPU, and from older agents. ``health_said`` has
    ``health_reason`` in clauses of :data:`NOTES`.
    """

    uuid: Annotated[str, Meta(min_length=1, max_length=120, pattern=_CLEAN)]
    kind: Annotated[str, Meta(min_length=1, max_length=20, pattern=_CLEAN)]
    vendor: Name
    model: Text
    index: Small
    memory_bytes: Bytes
    capacity_milli: Milli = 1000
    numa: Small | None = None
    pci: Name | None = None
    simulated: bool = False
    health: Literal["OK", "DEGRADED", "UNHEALTHY", "LOST"] = "OK"
    health_reason: Text = ""
    features: Annotated[dict[Name, Rate], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    attributes: Annotated[dict[Name, Text], Meta(max_length=128)] = msgspec.field(default_factory=dict)
    links: Annotated[list[Link], Meta(max_length=1024)] = msgspec.field(default_factory=list)
    division: Division | None = None
    sharing: Literal["", "none", "soft", "hard"] = ""
    health_said: Said = msgspec.field(default_factory=list)


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network interface of the host; ``bits_per_s`` is the speed of its link, None if unknown."""

    name: Text
    bits_per_s: Counter | None = None
    is_up: bool = False


class Disk(msgspec.Struct, frozen=True, omit_defaults=True):
    name: Text
    size_bytes: Counter
    is_rotating: bool = False
    model: Text = ""


class FileSystem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mounted file system; ``size_bytes`` is None for a remote one, which is never queried."""

    mount: Text
    type: Text
    size_bytes: Counter | None = None


# The isolation of projects on a node; each level includes all before it.
ISOLATION: Final = ("none", "user", "private", "full")


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The inventory of a host. Sent only if its hash changed or the server asks for it.

    ``isolation`` is one of :data:`ISOLATION`; older agents use other words, which count as none.

    ``container_engine`` is the engine that answers there, for people; empty if none does, and None from an agent that
    does not look for one. ``mounts`` are the folders of which parts may mount what is in them. ``disk_bytes`` is the
    size of the file system on which parts work; 0 from an agent that does not tell. ``executor`` is the foreign engine
    whose jobs the parts are, empty where they run on the host itself; ``lacks`` are sentences about what it cannot
    give, and ``lacks_said`` has them in clauses of :data:`NOTES`.
    """

    hostname: Text
    os: Text
    arch: Text
    cpus: Count
    memory_bytes: Bytes
    isolation: Text
    runs_as: Text
    address: Text = "127.0.0.1"
    simulated: bool = False
    container_engine: Text | None = None
    labels: Annotated[dict[Name, Text], Meta(max_length=256)] = msgspec.field(default_factory=dict)
    mounts: Annotated[list[Text], Meta(max_length=MOST_MOUNTS)] = msgspec.field(default_factory=list)
    executor: Name = ""
    lacks: Annotated[list[Text], Meta(max_length=64)] = msgspec.field(default_factory=list)
    lacks_said: Annotated[list[Said], Meta(max_length=64)] = msgspec.field(default_factory=list)
    devices: Annotated[list[Device], Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=list)
    interfaces: Annotated[list[Interface], Meta(max_length=1024)] = msgspec.field(default_factory=list)
    disks: Annotated[list[Disk], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    file_systems: Annotated[list[FileSystem], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    disk_bytes: Bytes = 0


class InventoryRef(msgspec.Struct, frozen=True, omit_defaults=True):
    hash: Name
    full: Inventory | None = None


class Released(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of a device that a part held: in use before the part started, its maximum while the part ran, and
    ``after_s`` seconds after the last process ended; None if not measured.

    ``is_back`` tells whether the memory of the part was freed; None if unknown because others use the device too.
    """

    uuid: Name
    before_bytes: Bytes | None = None
    most_bytes: Bytes | None = None
    left_bytes: Bytes | None = None
    after_s: Number | None = None
    is_back: bool | None = None


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a part. ``code`` or ``signal`` is set if its process was waited for.

    ``cause`` is empty for a plain exit 0, else one of the values of ``scheduler.core.model.lifecycle.Cause`` that
    an agent can know: EXIT_CODE SIGNAL TIMEOUT OUT_OF_MEMORY OUT_OF_DISK SUPERVISOR_LOST NODE_REBOOT LAUNCH_FAILED
    CHECKPOINTED LEASE_EXPIRED DEVICE_ERROR NODE_UNFIT SETUP_FAILED. ``detail`` explains it in an English sentence;
    ``said`` has the same in clauses of :data:`ENDS`, if it consists of such. ``stopped`` tells that a stop notice
    had been given: an exit 0 after it is a stop, not a completion. ``energy_j`` is the energy of its devices by
    kind, their watts over its time by its share, of which ``energy_measured_s`` was measured; kinds without power
    measurement are absent. ``device_peak_bytes`` is the most memory in use on one of its devices by kind, of those
    that nobody else used. ``released`` tells for each of its devices, except CPUs, whether its memory was freed.
    """

    code: Code | None = None
    signal: Code | None = None
    cause: Why = ""
    detail: Text = ""
    said: Annotated[list[Clause], Meta(max_length=256)] = msgspec.field(default_factory=list)
    stopped: bool = False
    ran_s: Number = 0.0
    cpu_s: Number = 0.0
    peak_memory_bytes: Bytes = 0
    energy_j: ByKind = msgspec.field(default_factory=dict)
    energy_measured_s: Number = 0.0
    device_peak_bytes: Annotated[dict[Name, Bytes], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    released: Annotated[list[Released], Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=list)


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resumable point that the stage confirmed; ``age_s`` is how long ago.

    ``took_s`` is how long saving blocked the stage; ``None`` if the stage did not report it.
    """

    step: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    path: Text
    age_s: Number = 0.0
    took_s: Number | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest values that the stage reported through ``switchyard.runtime``.

    ``values_at`` has the steps of those that were reported at another step than ``step``.
    """

    step: Step | None = None
    total: Step | None = None
    phase: Text = ""
    values: Annotated[dict[Text, Value], Meta(max_length=4_096)] = msgspec.field(default_factory=dict)
    values_at: Annotated[dict[Text, Step], Meta(max_length=4_096)] = msgspec.field(default_factory=dict)


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output of a stage, ``<its output folder>/<name>``, stored by digest on the node that ran it."""

    name: Text
    digest: Name
    size_bytes: Counter
    files: Count = 1


class Here(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part that this agent knows. ``logs`` maps ``"<rank>.<out|err>"`` to the bytes written so far.

    ``spec_rev`` is the newest revision that was applied; ``notes`` say which of its settings, or of those at the start,
    could not be. ``substate_said`` and ``notes_said`` have the same in clauses of :data:`NOTES`. ``listens`` are those
    of the ports that its spec names on which it listens now.
    """

    part: Name
    attempt: Name
    epoch: Count
    phase: Small
    spec_rev: Count = 1
    pid: Counter | None = None
    pid_start: Counter | None = None
    substate: Text = ""
    exit: Exit | None = None
    logs: Annotated[dict[Name, Counter], Meta(max_length=16_384)] = msgspec.field(default_factory=dict)
    devices: Annotated[list[Name], Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=list)
    checkpoints: Annotated[list[Checkpoint], Meta(max_length=4_096)] = msgspec.field(default_factory=list)
    progress: Progress | None = None
    notes: Annotated[list[Text], Meta(max_length=256)] = msgspec.field(default_factory=list)
    substate_said: Said = msgspec.field(default_factory=list)
    notes_said: Annotated[list[Said], Meta(max_length=256)] = msgspec.field(default_factory=list)
    outputs: Annotated[list[Output], Meta(max_length=1_024)] = msgspec.field(default_factory=list)
    listens: Annotated[list[Port], Meta(max_length=MOST_PORTS)] = msgspec.field(default_factory=list)


# The code of a device that processes of an ended part still hold; it is not allocated until they are gone.
QUARANTINED: Final = "QUARANTINED"


class DeviceError(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with a device: a code, an English sentence, and the same in clauses of :data:`NOTES`."""

    uuid: Name
    code: Name
    detail: Text = ""
    said: Said = msgspec.field(default_factory=list)


class SetAside(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part that the agent could not adopt when it started, ``age_s`` seconds ago; ``tries`` counts its attempts."""

    part: Name
    folder: Text
    reason: Text
    age_s: Number = 0.0
    tries: Count = 1


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Problems of the host; each note is a sentence for people, and ``notes_said`` has it in clauses of :data:`NOTES`.
    While anything is ``unfit``, by the operator's own checks, nothing new is started there."""

    disk_pressure: bool = False
    unfit: Annotated[list[Text], Meta(max_length=64)] = msgspec.field(default_factory=list)
    device_errors: Annotated[list[DeviceError], Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=list)
    notes: Annotated[list[Text], Meta(max_length=256)] = msgspec.field(default_factory=list)
    notes_said: Annotated[list[Said], Meta(max_length=256)] = msgspec.field(default_factory=list)
    aside: Annotated[list[SetAside], Meta(max_length=256)] = msgspec.field(default_factory=list)


def noted(conditions: Conditions, notes: Sequence[str]) -> Conditions:
    """These conditions with more notes."""
    return msgspec.structs.replace(
        conditions,
        notes=[*conditions.notes, *map(str, notes)],
        notes_said=[*conditions.notes_said, *map(clauses_of, notes)],
    )


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The digests that a node stores, newest use first, and where others may fetch them; sent if it changed.

    ``url`` is empty if it serves nobody. ``key`` makes the tickets (see ``agents.storage.peers``); it is replaced
    often.
    """

    digests: Annotated[list[Name], Meta(max_length=100_000)]
    url: Text = ""
    key: Name = ""


# A local job's id: a UUID of version 7, chosen by who submits it.
LocalId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")]
MOST_LOCAL: Final = 1_024
# The longest job file of a local job, as JSON.
LOCAL_SPEC_BYTES: Final = 65_536


class LocalClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a local job holds, or held, of a device."""

    uuid: Annotated[str, Meta(min_length=1, max_length=120, pattern=_CLEAN)]
    milli: Annotated[int, Meta(ge=1, le=MOST_MILLI)]
    memory_bytes: Bytes = 0


class LocalJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that an account of the node submitted on the node itself, and that has begun there.

    ``spec`` is its job file as it was accepted. It was accepted ``accepted_s`` ago and began ``begun_s`` ago, by the
    clock of its node. ``exit`` is its end; None while it runs.
    """

    account: Annotated[str, Meta(min_length=1, max_length=64, pattern=_CLEAN)]
    project: Name
    spec: dict[Name, Any]
    claims: Annotated[list[LocalClaim], Meta(max_length=MOST_DEVICES)]
    accepted_s: Number
    begun_s: Number
    exit: Exit | None = None


class LocalOffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A local job that the record should have. Without ``job`` the node was told that the record has it."""

    id: LocalId
    job: LocalJob | None = None


class LocalAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to an offer: the number of the job in the record; without one, why it is not there.

    ``wants`` asks for the whole job: the record is older than the node believed.
    """

    id: str
    number: int | None = None
    why: str = ""
    wants: bool = False


class LocalIds(msgspec.Struct, frozen=True):
    """The ids of the rows of a local job, which follow from its own: whoever makes them makes the same."""

    stage: str
    attempt: str
    part: str


@lru_cache(4_096)
def local_ids(job: str) -> LocalIds:
    """Return the ids that follow from that of a local job."""
    return LocalIds(*(str(uuid5(UUID(job), name)) for name in ("stage", "attempt", "part")))


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Agent to server: the full state of the node. The node's identity comes from its credential, never from this.

    ``incarnation`` is a nonce of the agent's process, ``seq`` counts its reports. ``machine_id`` is a digest of the
    host's own id; empty if it has none. Both distinguish a copied identity from its original. ``local`` are jobs that
    were submitted on the node itself, until the record has them.
    """

    proto: Small
    agent: Name
    boot_id: Annotated[str, Meta(max_length=64, pattern=_CLEAN)]
    start_seq: Counter
    seq: Counter
    seen_generation: Counter
    inventory: InventoryRef
    here: Annotated[list[Here], Meta(max_length=20_000)] = msgspec.field(default_factory=list)
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    kept: Kept | None = None
    incarnation: Annotated[str, Meta(max_length=64, pattern=_CLEAN)] = ""
    machine_id: Annotated[str, Meta(max_length=64, pattern=_CLEAN)] = ""
    sessions: bool = False
    local: Annotated[list[LocalOffer], Meta(max_length=MOST_LOCAL)] = msgspec.field(default_factory=list)


class DeviceClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part's hold on a share of one device of this node, or on one ``partition`` of it."""

    uuid: str
    kind: str
    vendor: str
    model: str
    index: int
    milli: int
    memory_bytes: int
    simulated: bool = False
    partition: Partition | None = None


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a stage, by digest: a *file*, or a *tree* by its manifest's.

    It appears as ``name`` (a relative path) in the input folder. ``source`` is a URL or a path from which any node may
    load it; empty for another stage's output. On shared storage ``path`` is where it is already: nothing is fetched.
    With ``shard`` each rank gets its share of the files.
    """

    name: str
    digest: str
    kind: Literal["file", "tree"] = "tree"
    source: str = ""
    path: str = ""
    shard: bool = False


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder of the node that a part sees at ``path``; without an image that is its place on the node itself."""

    source: str
    path: str
    readonly: bool = True


class GangPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that the gang holds on some node; ``address`` is that of its own network port, if it has one."""

    kind: str
    vendor: str
    index: int
    address: str = ""


class GangMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a gang, and its accelerators; simulated ones are left out."""

    name: str
    address: str
    devices: list[GangPeer] = msgspec.field(default_factory=list)


class Setup(msgspec.Struct, frozen=True):
    """A script for ``/bin/sh`` that runs first on each node of an attempt, and the command that follows if it ends with
    0.

    The command is here and ``argv`` of the spec is empty: an agent that knows no setup must not run it without one.
    """

    script: str
    argv: list[str]


class PartSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that an agent needs to run one part. ``argv`` is executed without a shell.

    ``time_limit_s`` is the remaining limit of this attempt. ``lease_s`` is set only under ``on_node_lost: requeue``:
    the shim stops the part by itself if no report was answered for that long, and does not start it after that.
    Directories are absolute paths on the node; the node chooses empty ones. The node resumes from a complete checkpoint
    in ``checkpoint_dir`` that is newer than ``resume_from`` (of ``resume_step``), and keeps the newest
    ``keep_checkpoints`` there (0: all). ``checkpoint_every_s`` is the checkpoint interval, if known. ``gang`` has the
    nodes in rank order if there are several. ``launcher`` tells who starts one process per device: the command itself
    (``per-node``), or the agent. ``secrets`` names the variables of ``env`` whose values never appear in a log.
    ``weight`` is its share of contended cores by its priority, from 1 to 10000 around 100. ``project_number`` never
    belongs to another project. ``image`` names the container image to run it in, in the grammar of :data:`IMAGE`; empty
    means plain processes. ``ports`` are those whose listeners are reported. ``secret_files`` are contents of files that
    only the task may read, by the variable with the file's path. ``disk_bytes`` is how much its own files may take up
    together; 0 for any. ``refused`` is why the part cannot be started at all.
    """

    job: int
    job_name: str
    stage: str
    stage_kind: str
    project: str
    attempt_number: int
    argv: list[str]
    setup: Setup | None = None
    project_number: int = 0
    pool: str = ""
    rank: int = 0
    nodes: list[str] = msgspec.field(default_factory=list)
    gang: list[GangMember] = msgspec.field(default_factory=list)
    launcher: Literal["per-node", "per-device"] = "per-node"
    env: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: list[str] = msgspec.field(default_factory=list)
    secret_files: dict[str, str] = msgspec.field(default_factory=dict)
    refused: Clause | None = None
    bundle: str | None = None
    image: str = ""
    devices: list[DeviceClaim] = msgspec.field(default_factory=list)
    cpus_milli: int = 1000
    weight: int = 100
    memory_bytes: int = 0
    disk_bytes: int = 0
    time_limit_s: float | None = None
    lease_s: float | None = None
    grace_s: float = 30.0
    stop_to: Literal["main", "group"] = "main"
    checkpoint_dir: str = ""
    output_dir: str = ""
    input_dir: str = ""
    mounts: list[Mount] = msgspec.field(default_factory=list)
    inputs: list[Input] = msgspec.field(default_factory=list)
    outputs: list[str] = msgspec.field(default_factory=list)
    resume_from: str = ""
    resume_step: int | None = None
    keep_checkpoints: int = 0
    checkpoint_every_s: float | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    ports: list[int] = msgspec.field(default_factory=list)


class Share(msgspec.Struct, frozen=True, omit_defaults=True):
    """The resources of a running part by a revision, all of them each time; ``None`` means as at the start.

    ``cpus_milli`` are cores in thousandths, of which the agent picks the set; ``cpus`` names the set by the kernel's
    numbers instead. Weights are from 1 to 10000 around 100, as in cgroup v2. ``memory_bytes`` is the limit. On a
    time-shared device, a part of the queue class *short* stays on the top level whatever it used, and one of *long* on
    the last; ``quantum_s`` is the length of its turns, whatever its level.
    """

    cpus_milli: Counter | None = None
    cpus: list[Count] | None = None
    cpu_weight: Count | None = None
    io_weight: Count | None = None
    memory_bytes: Counter | None = None
    suspended: bool = False
    queue_class: Literal["short", "long"] | None = None
    quantum_s: float | None = None


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """One order. ``run`` has the spec; ``stop`` has the grace period and the reason.

    A ``stop`` with ``save`` asks the stage for a checkpoint within its grace period, from which a later attempt
    resumes.

    A ``run`` with a higher ``spec_rev`` than the agent has applied changes the running part: it gets ``share``. One
    with a higher ``signal_rev`` than the agent has carried out sends its main process ``signal``, such as ``SIGUSR1``.
    One with a higher ``save_rev`` than the agent has passed on asks the stage to save now and go on: its stop is
    planned.
    """

    part: str
    attempt: str
    epoch: int
    do: Literal["run", "stop"]
    spec_rev: int = 1
    spec: PartSpec | None = None
    share: Share | None = None
    grace_s: float = 30.0
    why: str = ""
    save: bool = False
    signal: str = ""
    signal_rev: int = 0
    save_rev: int = 0


class Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    part: str
    epoch: int
    code: str


class AsideOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's decision about a quarantined part: to adopt it again, or to end it.

    It applies to the attempt that it was made for, ``tries``, so the same order twice is one.
    """

    part: str
    do: Literal["release", "discard"]
    tries: int = 1


class Timers(msgspec.Struct, frozen=True, omit_defaults=True):
    """All timers of the link, in seconds; set by the server."""

    report_s: float = 5.0
    suspect_s: float = 15.0
    lost_s: float = 45.0
    lease_s: float = 60.0
    telemetry_s: float = 1.0


class SessionOrder(msgspec.Struct, frozen=True):
    """A request for an interactive session in a part: the agent connects to :data:`SESSION_PATH`, where it gets the
    command."""

    id: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z-]+\Z")]
    part: Name


class TraceOrder(msgspec.Struct, frozen=True):
    """A request for a profile of what a part does, for so many seconds, which the agent sends to :data:`TRACE_PATH`.

    It is repeated until the agent has answered with :class:`TraceNews`.
    """

    id: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z-]+\Z")]
    part: Name
    epoch: Count
    tool: Name
    seconds: Annotated[int, Meta(ge=1, le=120)]


class TraceNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a trace is being taken, or why there is none: a sentence, and the same in clauses of :data:`ENDS`."""

    state: Literal["RUNNING", "FAILED"]
    detail: Text = ""
    said: Said = msgspec.field(default_factory=list)


# The largest file of a trace.
MOST_TRACE_BYTES: Final = 64 << 20


class OpenSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first message to the agent on a session's own socket: the command, empty for :data:`SHELL`.

    Bytes follow as binary messages of at most ``PIECE_BYTES`` after one byte that names their stream: 0 for the
    command's input (alone its end), 1 for its output, 2 for its errors. All else is a :class:`SessionWord`.

    With a ``port`` there is no command (an agent that does not know the field runs ``argv``, which fails): with
    ``stdin`` the bytes are those of a connection to that port of the part, without it the session is only held open.
    """

    part: Name
    epoch: Count
    argv: Annotated[list[Annotated[str, Meta(max_length=32_768, pattern=_CLEAN)]], Meta(max_length=1_024)]
    tty: bool = False
    stdin: bool = False
    rows: Annotated[int, Meta(ge=1, le=10_000)] = 24
    columns: Annotated[int, Meta(ge=1, le=10_000)] = 80
    term: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._+-]{0,64}\Z")] = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0


class SessionEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a session: the command's exit code, the signal that ended it, or ``cut`` and ``error`` without either.

    ``cut`` is for programs: ``part`` if the part ended or never ran, ``refused`` if the command could not start.
    """

    code: Code | None = None
    signal: Count | None = None
    cut: Name = ""
    error: Text = ""


class SessionWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A control message of a session, either way. Each field stands for itself.

    ``taken`` acknowledges that many more bytes of the other side: nobody sends more than ``WINDOW_BYTES``
    unacknowledged ones. So a slow reader slows the writer, and nothing in between buffers more than that.
    """

    rows: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    columns: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    signal: Literal["", "SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP"] = ""
    taken: Count = 0
    end: SessionEnd | None = None


# Limits of a session: the bytes of one message, and the unacknowledged bytes.
PIECE_BYTES: Final = 16_384
WINDOW_BYTES: Final = 262_144
# A message with its head; a control message is shorter.
SESSION_MESSAGE_BYTES: Final = 131_072
SHELL: Final = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")


class LinkOrder(msgspec.Struct, frozen=True):
    """A request to measure the bandwidth from another node, by a transfer of at most :data:`MEASURED_BYTES`, once per
    ``rev``; the outcome is a :class:`Fetched`. ``ticket`` is one for :data:`MEASURED` at that node."""

    rev: int
    node: str
    url: str
    ticket: str


class Desired(msgspec.Struct, frozen=True, omit_defaults=True):
    """Server to agent: all orders for the node, as of ``generation``. Older generations are ignored.

    ``accepted`` maps a part to the phase that the server has recorded. A part in ``forget`` has been recorded as ended:
    the agent may drop it. A part in ``unknown`` is not known to the server: the agent keeps it and never kills it for
    that. Absence from ``wanted`` is not a stop. ``prefetch`` are the inputs of stages planned for the node. ``faults``
    are sentences about refused fields of the report, for the agent's log. ``answers_seq`` is the report that this
    answers, 0 for none; only an answer renews leases. It is None from an old server, whose every message does.
    ``credential`` is a new secret of the node, which replaces the present one once it is used. ``sessions`` are to be
    opened now: each is in one message only, and a caller that waits for a lost one asks again. ``traces`` are to be
    taken now. ``measure`` is the measurement of a link to be made now; it is repeated until it was reported. ``local``
    answers what the report offered.
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
    answers_seq: int | None = None
    prefetch: list[Input] = msgspec.field(default_factory=list)
    faults: list[str] = msgspec.field(default_factory=list)
    credential: str = ""
    sessions: list[SessionOrder] = msgspec.field(default_factory=list)
    traces: list[TraceOrder] = msgspec.field(default_factory=list)
    aside: list[AsideOrder] = msgspec.field(default_factory=list)
    measure: LinkOrder | None = None
    local: list[LocalAnswer] = msgspec.field(default_factory=list)


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes of one stream (``out`` or ``err``) of one rank, which start at ``offset``; at most 256 KiB."""

    part: Name
    epoch: Count
    rank: Count
    stream: Name
    offset: Counter
    data: bytes


class LogBatch(msgspec.Struct, frozen=True):
    chunks: Annotated[list[LogChunk], Meta(max_length=10_000)]
    incarnation: Annotated[str, Meta(max_length=64, pattern=_CLEAN)] = ""


class LogCommit(msgspec.Struct, frozen=True):
    """The bytes of one stream that the server has after a batch: the agent continues at ``committed``."""

    part: str
    rank: int
    stream: str
    committed: int
    refused: str = ""


class LogReceipt(msgspec.Struct, frozen=True):
    streams: list[LogCommit]


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of one device, ``age_s`` before it was sent. ``None`` means that the vendor does not report it.

    ``throttled`` lists the reasons for a reduced clock, separated by commas; empty if there are none or unknown.
    ``energy_j`` is the hardware's own counter, which restarts with its driver; agents use it and do not send it.
    """

    uuid: Name
    age_s: Number
    utilisation: Number | None = None
    memory_used_bytes: Counter | None = None
    power_w: Number | None = None
    temperature_c: Number | None = None
    clock_hz: Number | None = None
    throttled: Text = ""
    energy_j: Number | None = None


class PartSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The use of resources by the processes of one part: ``cpu`` in cores, resident memory in bytes, and ``energy_j``
    so far by kind of device (see :class:`Exit`)."""

    part: Name
    age_s: Number
    cpu: Number | None = None
    rss_bytes: Counter | None = None
    energy_j: ByKind = msgspec.field(default_factory=dict)


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of the host: bytes since it started by interface and disk, free bytes by mount.

    ``pressure`` is per cent of the last ten seconds in which some or all tasks waited: ``memory_full``, ``cpu_some``.
    ``queue`` is how many tasks per core ran or waited to run in the last minute. ``disk_room_bytes`` is how much of the
    file system on which parts work is free, or used by parts within the disk space that they asked for.
    """

    age_s: Number = 0.0
    pressure: ByKind = msgspec.field(default_factory=dict)
    received_bytes: ByName = msgspec.field(default_factory=dict)
    sent_bytes: ByName = msgspec.field(default_factory=dict)
    read_bytes: ByName = msgspec.field(default_factory=dict)
    written_bytes: ByName = msgspec.field(default_factory=dict)
    free_bytes: ByName = msgspec.field(default_factory=dict)
    queue: Number | None = None
    disk_room_bytes: Counter | None = None


# What a ticket for a measurement is for, in the place of a digest, and how much is sent at most, in at most so long.
MEASURED: Final = "measure"
MEASURED_BYTES: Final = 64 << 20
MEASURED_S: Final = 5.0


class Fetched(msgspec.Struct, frozen=True):
    """One transfer from another node, and its duration. ``peer`` names that node; empty from an older agent."""

    size_bytes: Counter
    took_s: Number
    peer: Annotated[str, Meta(max_length=256, pattern=_CLEAN)] = ""


class TelemetryBatch(msgspec.Struct, frozen=True):
    """Measurements. ``seq`` counts the batches of an ``incarnation``: duplicates are ignored."""

    devices: Annotated[list[DeviceSample], Meta(max_length=20_000)]
    parts: Annotated[list[PartSample], Meta(max_length=20_000)]
    host: HostSample | None = None
    fetched: Annotated[list[Fetched], Meta(max_length=1_024)] = msgspec.field(default_factory=list)
    incarnation: Annotated[str, Meta(max_length=64, pattern=_CLEAN)] = ""
    seq: Counter = 0


class AskSources(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node asks which nodes have a root that it needs. ``failed`` are nodes from which fetching failed."""

    digest: Name
    failed: Annotated[list[Name], Meta(max_length=10_000)] = msgspec.field(default_factory=list)


class Source(msgspec.Struct, frozen=True):
    """A node that has it, and the ticket for it there."""

    node: str
    url: str
    ticket: str


class Sources(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where to fetch from, best first. ``is_appointed``: no node has it yet, and this node is to load its source.

    Otherwise ask again after ``wait_s``: another node loads it. ``refused`` is why it cannot be fetched at all.
    """

    peers: list[Source] = msgspec.field(default_factory=list)
    is_appointed: bool = False
    wait_s: float = 1.0
    refused: str = ""


class Enrol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new agent joins with a one-time or n-time token."""

    token: Name
    name: Name


class Enrolled(msgspec.Struct, frozen=True):
    """The node's identity, and the secret that proves it. The secret is never sent again.

    An agent also stores the ``former`` one here, because a control plane that was restored from a backup knows no newer
    one.
    """

    node: str
    name: str
    credential: str
    former: str = ""


# Paths under the server's address.
LINK_PATH: Final = "/agent/v1/link"
ENROL_PATH: Final = "/agent/v1/enrol"
LOGS_PATH: Final = "/agent/v1/logs"
TELEMETRY_PATH: Final = "/agent/v1/telemetry"
SOURCES_PATH: Final = "/agent/v1/sources"
BUNDLE_PATH: Final = "/agent/v1/bundles/{sha256}"
SESSION_PATH: Final = "/agent/v1/sessions/{session}"
TRACE_PATH: Final = "/agent/v1/traces/{trace}"
TRACE_FILE_PATH: Final = "/agent/v1/traces/{trace}/content"
