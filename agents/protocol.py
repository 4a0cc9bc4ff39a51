"""The wire shapes that server and agent exchange; the only module of the agent that the control plane imports.

Two messages join the two sides, and both carry full state: :class:`Report` goes up, :class:`Desired` comes down.
Any of them may be lost, doubled, late or out of order without harm. They travel as JSON over one WebSocket per agent.
Logs and telemetry travel as msgpack on their own HTTP calls (:class:`LogBatch`, :class:`TelemetryBatch`), so that a
heartbeat never waits behind a log.

What goes up is bounded here, once for all: every number has a range, every text and list a length, and no text holds a
NUL. The server reads with these shapes and says what it does not take. Ranges are chosen so that sums over all that can
be sent stay exact: 2^50 bytes times 1,024 devices is far below 2^63, and one device's bytes are exact as a float too.

Durations cross the wire, never dates: no decision compares the clocks of two machines. Unknown fields are ignored, and
every field added later has a default, so that an older side can still read a newer message.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from agents.ends import ENDS as ENDS

# What both sides hide is told by one rule: the agent masks logs by it, the server what it shows of job files.
from agents.masking import MASK as MASK
from agents.masking import tells_secret as tells_secret
from agents.notes import NOTES as NOTES
from agents.notes import clauses as clauses_of

PROTO: Final = 1
MIN_PROTO: Final = 1

# What names a container image, as the OCI distribution specification has it: [host[:port]/]path[:tag][@sha256:digest].
# It never begins with a sign, so it can be no option of a program that is given it.
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
MOST_RATE: Final = 1e9
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
Code = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Milli = Annotated[int, Meta(ge=0, le=MOST_MILLI)]
Rate = Annotated[float, Meta(ge=0, le=MOST_RATE)]
"""A peak rate or a power, in the unit that its name says."""
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""A measurement; finite."""
Value = Annotated[int, Meta(ge=-(2**53), le=2**53)] | Annotated[float, Meta(ge=-1e300, le=1e300)] | Text
"""What a stage reports under a name of its own; finite."""
Fields = Annotated[dict[Name, Value], Meta(max_length=256)]
ByName = Annotated[dict[Annotated[str, Meta(max_length=4_096, pattern=_CLEAN)], Counter], Meta(max_length=4_096)]
ByKind = Annotated[dict[Name, Number], Meta(max_length=64)]
# The words of scheduler.core.model.lifecycle.Cause, and none for a plain exit 0.
Why = Literal[
    "", "EXIT_CODE", "SIGNAL", "TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "RESIZE", "MOVE", "CANCELLED", "DEADLINE",
    "NODE_FAIL", "NODE_REBOOT", "DEVICE_ERROR", "SUPERVISOR_LOST", "LAUNCH_FAILED", "LEASE_EXPIRED", "CHECKPOINTED",
    "DEPENDENCY", "NODE_UNFIT",
]  # fmt: skip


class Phase(IntEnum):
    """How far a part has come. A report with a lower or equal phase changes nothing; ``ENDED`` is final."""

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

    ``start`` is its first slot, None where the driver does not tell. ``uuid`` is how the vendor's runtime knows it;
    empty for one that is only made when a stage starts.
    """

    profile: Name
    start: Small | None = None
    size: Annotated[int, Meta(ge=1, le=1_024)] = 1
    uuid: Name = ""


class Division(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device can be divided and is. ``profiles`` says how many of each an empty device could have.

    ``made`` are the partitions that somebody made on purpose. ``makes`` tells that this agent makes and removes others
    as stages come and go, and ``whole`` that it can give the device undivided too.
    """

    mode: Name
    profiles: Annotated[dict[Name, Small], Meta(max_length=256)] = msgspec.field(default_factory=dict)
    made: Annotated[list[Partition], Meta(max_length=256)] = msgspec.field(default_factory=list)
    makes: bool = False
    whole: bool = False


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schedulable unit as an agent found it.

    ``uuid`` is stable across restarts and unique in the installation. A CPU device is one NUMA node: its capacity is
    cores x 1000 milli. Any other device has 1000 milli. ``features`` holds peak rates by precision and the like, e.g.
    ``{"bf16_tflops": 989.0, "memory_gbps": 3350.0, "watts": 700.0}``. ``sharing`` says what holds who shares it to
    their memory: ``hard`` (the hardware, for its partitions), ``soft`` (the agent, which sees who uses how much, and
    ends who uses too much) or ``none``; empty for a CPU, and from older agents. ``health_said`` has ``health_reason``
    in clauses of :data:`NOTES`.
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
    """A network interface of the host; ``bits_per_s`` is the speed of its link, None where it tells none."""

    name: Text
    bits_per_s: Counter | None = None
    is_up: bool = False


class Disk(msgspec.Struct, frozen=True, omit_defaults=True):
    name: Text
    size_bytes: Counter
    is_rotating: bool = False
    model: Text = ""


class FileSystem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where files can be kept; ``size_bytes`` is None for one of another host, which is never asked."""

    mount: Text
    type: Text
    size_bytes: Counter | None = None


# How far a node keeps stages of different projects apart, each level with all of those before it.
ISOLATION: Final = ("none", "user", "private", "full")


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a host is and has. Sent only when its hash changed or the server asks for it.

    ``isolation`` is one of :data:`ISOLATION`; older agents say other words, which count as none.

    ``container_engine`` is the engine that answers there, for people; empty where none does, and None from an agent
    that does not look for one.
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
    devices: Annotated[list[Device], Meta(max_length=MOST_DEVICES)] = msgspec.field(default_factory=list)
    interfaces: Annotated[list[Interface], Meta(max_length=1024)] = msgspec.field(default_factory=list)
    disks: Annotated[list[Disk], Meta(max_length=4096)] = msgspec.field(default_factory=list)
    file_systems: Annotated[list[FileSystem], Meta(max_length=4096)] = msgspec.field(default_factory=list)


class InventoryRef(msgspec.Struct, frozen=True, omit_defaults=True):
    hash: Name
    full: Inventory | None = None


class Released(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the memory of a device that a part held: in use before it started, at most while it ran, and
    ``after_s`` after its last process was gone; None where that was not measured.

    ``is_back`` tells whether it gave back what it had taken; None where that cannot be told, for others use it too.
    """

    uuid: Name
    before_bytes: Bytes | None = None
    most_bytes: Bytes | None = None
    left_bytes: Bytes | None = None
    after_s: Number | None = None
    is_back: bool | None = None


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a part ended. ``code`` or ``signal`` is set when its process was waited for.

    ``cause`` is empty for a plain exit 0, else one of the words of ``scheduler.core.model.lifecycle.Cause`` that an
    agent can know: EXIT_CODE SIGNAL TIMEOUT OUT_OF_MEMORY SUPERVISOR_LOST NODE_REBOOT LAUNCH_FAILED CHECKPOINTED
    LEASE_EXPIRED DEVICE_ERROR NODE_UNFIT. ``detail`` says more in an English sentence; ``said`` has the same in
    clauses of :data:`ENDS`, where it is made of such. ``stopped`` tells that a stop notice had been given: an exit
    0 after it is a stop, not a completion. ``energy_j`` is what its devices drew by kind, their watts over its time
    by its share, of which ``energy_measured_s`` was measured; a kind that does not tell its watts is absent.
    ``device_peak_bytes`` is the most memory in use on one of its devices by kind, of those that nobody else used.
    ``released`` tells of each of its devices, but for CPUs, whether it gave its memory back.
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

    ``took_s`` is how long its saving held up the stage; ``None`` where the stage did not tell.
    """

    step: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    path: Text
    age_s: Number = 0.0
    took_s: Number | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest values that the stage reported through ``switchyard.runtime``."""

    step: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None
    total: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None
    phase: Text = ""
    values: Annotated[dict[Text, Value], Meta(max_length=4_096)] = msgspec.field(default_factory=dict)


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stage left under ``<its output folder>/<name>``, kept by digest on the node that ran it."""

    name: Text
    digest: Name
    size_bytes: Counter
    files: Count = 1


class Here(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part that this agent knows. ``logs`` maps ``"<rank>.<out|err>"`` to the bytes written so far.

    ``spec_rev`` is the newest revision that was applied; ``notes`` say what of it, or of its start, could not be.
    ``substate_said`` and ``notes_said`` have the same in clauses of :data:`NOTES`.
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


# The code of a device that an ended part does not let go; the device is given to nobody until it is gone.
QUARANTINED: Final = "QUARANTINED"


class DeviceError(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with a device: a code, an English sentence, and the same in clauses of :data:`NOTES`."""

    uuid: Name
    code: Name
    detail: Text = ""
    said: Said = msgspec.field(default_factory=list)


class SetAside(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part that the agent could not take over when it started, ``age_s`` ago; ``tries`` counts how often it tried."""

    part: Name
    folder: Text
    reason: Text
    age_s: Number = 0.0
    tries: Count = 1


class Conditions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is not as it should be on the host; each note is a sentence for people, and ``notes_said`` has it in clauses
    of :data:`NOTES`. While anything is ``unfit``, as the
    operator's own checks say, nothing new is to be started here."""

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
    """What a node has by digest, newest use first, and where others may fetch it; sent when it changed.

    ``url`` is empty where it serves nobody. ``key`` makes the tickets (see ``agents.storage.peers``); it is replaced
    often.
    """

    digests: Annotated[list[Name], Meta(max_length=100_000)]
    url: Text = ""
    key: Name = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Agent to server: everything that is here. The node's identity comes from its credential, never from this.

    ``incarnation`` is a nonce of the agent's process, ``seq`` counts its reports. ``machine_id`` is a digest of what
    the host calls itself; empty where it has no such name. Both tell a copy of an identity from its original.
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
    """What a stage reads, by digest: a *file*, or a *tree* by its manifest's.

    It appears as ``name`` (a relative path) in the input folder. ``source`` is a URL or a path that any node may load
    it from; empty for another stage's output. On a shared disk ``path`` is where it lies already: nothing is fetched.
    With ``shard`` each rank is given its share of the files.
    """

    name: str
    digest: str
    kind: Literal["file", "tree"] = "tree"
    source: str = ""
    path: str = ""
    shard: bool = False


class GangPeer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that the gang holds on some node; ``address`` is that of its own network port, where it has one."""

    kind: str
    vendor: str
    index: int
    address: str = ""


class GangMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a gang, and the accelerators that it gives; simulated ones are left out."""

    name: str
    address: str
    devices: list[GangPeer] = msgspec.field(default_factory=list)


class PartSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that an agent needs to run one part. ``argv`` is executed as it is; no shell is added here.

    ``time_limit_s`` is what is left for this attempt. ``lease_s`` is set only under ``on_node_lost: requeue``: the shim
    stops the part by itself when no report was answered for that long, and does not start it after that. Directories
    are absolute paths on the node; an empty one is the node's own to choose. The node resumes from what is complete in
    ``checkpoint_dir`` where that is newer than ``resume_from`` (of ``resume_step``), and keeps the newest
    ``keep_checkpoints`` there (0: all). ``checkpoint_every_s`` is how often it is to save, where that is known.
    ``gang`` has the nodes in rank order where there are several. ``launcher`` says who starts one process per device:
    the command itself (``per-node``), or the agent. ``secrets`` names the variables of ``env`` whose values never
    appear in a log. ``weight`` is what its priority makes of its share of contended cores, from 1 to 10000 around 100.
    ``project_number`` never belongs to another project. ``image`` names the container image to run it in, in the
    grammar of :data:`IMAGE`; empty means plain processes. ``secret_files`` are contents of files that only the task may
    read, by the variable that tells it where the file is. ``refused`` says why the part cannot be started at all.
    """

    job: int
    job_name: str
    stage: str
    stage_kind: str
    project: str
    attempt_number: int
    argv: list[str]
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
    time_limit_s: float | None = None
    lease_s: float | None = None
    grace_s: float = 30.0
    stop_to: Literal["main", "group"] = "main"
    checkpoint_dir: str = ""
    output_dir: str = ""
    input_dir: str = ""
    inputs: list[Input] = msgspec.field(default_factory=list)
    outputs: list[str] = msgspec.field(default_factory=list)
    resume_from: str = ""
    resume_step: int | None = None
    keep_checkpoints: int = 0
    checkpoint_every_s: float | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0


class Share(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a revision gives a running part, all of it each time; ``None`` means as it started.

    ``cpus_milli`` are cores in thousandths, of which the agent picks the set; ``cpus`` names the set by the kernel's
    numbers instead. Weights go from 1 to 10000 around 100, as those of cgroup v2. ``memory_bytes`` is the limit.
    On a device that takes turns, a part of the queue class *short* stays on the top level whatever it used, and one of
    *long* on the last; ``quantum_s`` is how long its turns are, whatever its level.
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
    """One order. ``run`` carries the spec; ``stop`` carries the grace and the reason; ``signal`` carries the signal.

    A ``stop`` with ``save`` asks the stage for a checkpoint within its grace: a later attempt goes on from there.

    A ``run`` with a higher ``spec_rev`` than the agent has applied changes the running part: it gets ``share``.
    """

    part: str
    attempt: str
    epoch: int
    do: Literal["run", "stop", "signal"]
    spec_rev: int = 1
    spec: PartSpec | None = None
    share: Share | None = None
    grace_s: float = 30.0
    why: str = ""
    save: bool = False
    signal: str = ""


class Refused(msgspec.Struct, frozen=True, omit_defaults=True):
    part: str
    epoch: int
    code: str


class AsideOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person decided about a part that is set aside: to take it over again, or to end it.

    It holds for the try that it was decided on, ``tries``: so the same order twice is one.
    """

    part: str
    do: Literal["release", "discard"]
    tries: int = 1


class Timers(msgspec.Struct, frozen=True, omit_defaults=True):
    """All timers of the link, in seconds; the server owns them."""

    report_s: float = 5.0
    suspect_s: float = 15.0
    lost_s: float = 45.0
    lease_s: float = 60.0
    telemetry_s: float = 1.0


class SessionOrder(msgspec.Struct, frozen=True):
    """Somebody wants to enter a part: the agent is to dial :data:`SESSION_PATH`, where it is told with what."""

    id: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z-]+\Z")]
    part: Name


class OpenSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first message to the agent on a session's own socket: the command, for :data:`SHELL` where there is none.

    Bytes follow as binary messages of at most ``PIECE_BYTES`` after one byte that names their stream: 0 for the
    command's input (without more its end), 1 for its output, 2 for its errors. All else is a :class:`SessionWord`.
    """

    part: Name
    epoch: Count
    argv: Annotated[list[Annotated[str, Meta(max_length=32_768, pattern=_CLEAN)]], Meta(max_length=1_024)]
    tty: bool = False
    stdin: bool = False
    rows: Annotated[int, Meta(ge=1, le=10_000)] = 24
    columns: Annotated[int, Meta(ge=1, le=10_000)] = 80
    term: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._+-]{0,64}\Z")] = ""


class SessionEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a session ended: the command's exit code, the signal that ended it, or ``cut`` and ``error`` without either.

    ``cut`` is for programs: ``part`` where the part ended or never ran, ``refused`` where the command could not begin.
    """

    code: Code | None = None
    signal: Count | None = None
    cut: Name = ""
    error: Text = ""


class SessionWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What else is said on a session, either way. Each field stands for itself.

    ``taken`` tells how many bytes more of the other side's have been taken out of the way: nobody sends more than
    ``WINDOW_BYTES`` that are not. So a slow reader slows the writer, and nothing in between keeps more than that.
    """

    rows: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    columns: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    signal: Literal["", "SIGINT", "SIGTERM", "SIGQUIT", "SIGHUP"] = ""
    taken: Count = 0
    end: SessionEnd | None = None


# Of a session: how many bytes one message has, and how many may be on their way.
PIECE_BYTES: Final = 16_384
WINDOW_BYTES: Final = 262_144
# A message with its head; a word of JSON is shorter.
SESSION_MESSAGE_BYTES: Final = 131_072
SHELL: Final = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")


class Desired(msgspec.Struct, frozen=True, omit_defaults=True):
    """Server to agent: everything that is wanted on the node, as of ``generation``. Older generations are ignored.

    ``accepted`` maps a part to the phase that the server has recorded. A part in ``forget`` has been recorded as ended:
    the agent may drop it. A part in ``unknown`` is not known to the server: the agent keeps it and never kills it for
    that. Absence from ``wanted`` is not a stop. ``prefetch`` is what stages planned for the node will read. ``faults``
    are sentences about what of the report was refused, for the agent's log. ``answers_seq`` is the report that this
    answers, 0 for none; only an answer renews leases. None is a server of before, whose every message does.
    ``credential`` is a new secret of the node's, which takes the place of the one that it has once it is used.
    ``sessions`` are to be opened now: each stands in one message only, and who waits for a lost one asks again.
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
    aside: list[AsideOrder] = msgspec.field(default_factory=list)


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
    """What the server holds of one stream after a batch: the agent goes on from ``committed``."""

    part: str
    rank: int
    stream: str
    committed: int
    refused: str = ""


class LogReceipt(msgspec.Struct, frozen=True):
    streams: list[LogCommit]


class DeviceSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of one device, ``age_s`` before it was sent. ``None`` means that the vendor does not tell it.

    ``throttled`` says what holds the clock down, in words separated by commas; empty where nothing does or none tells.
    ``energy_j`` is the hardware's own counter, which begins anew with its driver; agents use it and do not send it.
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
    """What the processes of one part used: ``cpu`` in cores, resident memory in bytes, and ``energy_j`` so far by kind
    of device (see :class:`Exit`)."""

    part: Name
    age_s: Number
    cpu: Number | None = None
    rss_bytes: Counter | None = None
    energy_j: ByKind = msgspec.field(default_factory=dict)


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the host is: bytes since it started by interface and disk, free bytes by mount.

    ``pressure`` is per cent of the last ten seconds in which some or all tasks waited: ``memory_full``, ``cpu_some``.
    ``queue`` is how many tasks per core ran or waited to run in the last minute.
    """

    age_s: Number = 0.0
    pressure: ByKind = msgspec.field(default_factory=dict)
    received_bytes: ByName = msgspec.field(default_factory=dict)
    sent_bytes: ByName = msgspec.field(default_factory=dict)
    read_bytes: ByName = msgspec.field(default_factory=dict)
    written_bytes: ByName = msgspec.field(default_factory=dict)
    free_bytes: ByName = msgspec.field(default_factory=dict)
    queue: Number | None = None


class Fetched(msgspec.Struct, frozen=True):
    """What came from another node in one go, and how long that took."""

    size_bytes: Counter
    took_s: Number


class TelemetryBatch(msgspec.Struct, frozen=True):
    """Measurements. ``seq`` counts the batches of an ``incarnation``: each is taken once, whatever comes twice."""

    devices: Annotated[list[DeviceSample], Meta(max_length=20_000)]
    parts: Annotated[list[PartSample], Meta(max_length=20_000)]
    host: HostSample | None = None
    fetched: Annotated[list[Fetched], Meta(max_length=1_024)] = msgspec.field(default_factory=list)
    incarnation: Annotated[str, Meta(max_length=64, pattern=_CLEAN)] = ""
    seq: Counter = 0


class AskSources(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node asks who has a root that it needs. ``failed`` are nodes that it could not fetch it from."""

    digest: Name
    failed: Annotated[list[Name], Meta(max_length=10_000)] = msgspec.field(default_factory=list)


class Source(msgspec.Struct, frozen=True):
    """A node that has it, and the ticket that opens it there."""

    node: str
    url: str
    ticket: str


class Sources(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where to fetch from, best first. ``is_appointed``: nobody has it yet, and this node is to load its source.

    Otherwise ask again after ``wait_s``: another node loads it. ``refused`` says why it cannot be had at all.
    """

    peers: list[Source] = msgspec.field(default_factory=list)
    is_appointed: bool = False
    wait_s: float = 1.0
    refused: str = ""


class Enrol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new agent asks to join with a one-time or n-time token."""

    token: Name
    name: Name


class Enrolled(msgspec.Struct, frozen=True):
    """The answer: who the node is now, and the secret that proves it. The secret is never sent again.

    An agent also remembers the ``former`` one here: a control plane that was restored from a backup knows no newer.
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
