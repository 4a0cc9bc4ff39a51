"""The answers of the REST interface as types, for editors and type checkers.

Made by switchyard/packaging/answers.py from openapi.yaml; change the control plane, and make it anew. Answers are plain
dictionaries; a list with ``fields`` has only these keys.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, overload

AtEndEnum = Literal["notify", "hold", "stop"]
Goal = Literal["maximize", "minimize"]
Health = Literal["CORDONED", "DEGRADED", "LOST", "OK", "QUARANTINED", "UNHEALTHY"]
IsolationEnum = Literal["none", "user", "private", "full"]
Mode = Literal["exclusive", "shared"]
NodeState = Literal["DRAINED", "DRAINING", "JOINING", "LOST", "READY", "SUSPECT"]
OnNodeLostEnum = Literal["wait", "requeue", "requeue_fast"]
PeriodEnum = Literal["month", "quarter", "dates"]
RoleEnum = Literal["viewer", "member", "lead"]
State = Literal["CANCELLED", "COMPLETED", "FAILED", "HELD", "PENDING", "RUNNING", "STARTING", "STOPPING", "SUSPENDED"]


class Accepted(TypedDict):
    """One accepted job of a batch, or an array, which has no id."""

    id: str | None
    number: int


class AcceptedBatch(TypedDict):
    """The accepted jobs, in the order in which they were sent."""

    results: list[Accepted]


class Affected(TypedDict):
    """A stage that runs on a node of the window and may run into it."""

    job: int
    stage: str
    user: str
    node: str
    ends_by: str | None


class Array(TypedDict):
    """Many jobs from one file."""

    number: int
    name: str
    project: str
    user: str
    pool: str
    state: State
    count: int
    counts: dict[str, int]
    stopped_early: int
    max_parallel: int | None
    submitted_at: str
    started_at: str | None
    ended_at: str | None


class ArrayDetail(TypedDict):
    """An array, what its file declares of each parameter, the names of the numbers that its elements ...."""

    number: int
    name: str
    project: str
    user: str
    pool: str
    state: State
    count: int
    counts: dict[str, int]
    stopped_early: int
    max_parallel: int | None
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    parameters: NotRequired[dict[str, Any]]
    metrics: NotRequired[list[str]]
    best: NotRequired[BestElement | None]
    halving: NotRequired[SweepHalving | None]


class ArrayElement(TypedDict):
    """An element of an array in short."""

    index: int
    job: int
    state: State
    cause: str
    parameters: dict[str, Any]
    values: dict[str, float]
    rung: ElementRung | None
    started_at: str | None
    ended_at: str | None


class ArrayElementPage(TypedDict):
    """One page of an array's elements, in the order of their indexes."""

    results: list[ArrayElement]
    next: str | None
    previous: str | None


class ArrayPage(TypedDict):
    """Array page."""

    results: list[Array]
    next: str | None
    previous: str | None


class ArrayPlace(TypedDict):
    """The array of which a job is an element, by its number, and the element's index."""

    number: int
    index: int


class Attempt(TypedDict):
    """One try at running a stage."""

    id: str
    stage: str
    number: int
    alternative: int
    why_here: str
    why_here_said: list[Clause]
    placed: list[Placed]
    created_at: str
    started_at: str | None
    stop_why: str
    stop_at: str | None
    contact_lost_at: str | None
    ended_at: str | None
    expected_end_at: str | None
    overdue_since_at: str | None
    cause: str
    detail: str
    detail_said: list[Clause]
    exit_code: int | None
    signal: int | None
    price_device_s: float | None
    energy_j: dict[str, float]
    energy_measured_s: float | None
    idle_devices: list[str]
    parts: list[AttemptPart]


class AttemptPage(TypedDict):
    """One page of a job's attempts, in the order of its stages."""

    results: list[Attempt]
    next: str | None
    previous: str | None


class AttemptPart(TypedDict):
    """The piece of an attempt on one node."""

    rank: int
    node: str
    phase: str
    substate: str
    substate_said: list[Clause]
    pid: int | None
    spec_rev: int
    seen_rev: int
    share: dict[str, Any]
    notes: list[str]
    notes_said: list[list[Clause]]
    released: list[ReleasedDevice]


class AuditEntry(TypedDict):
    """A change."""

    id: int
    at: str
    actor: str
    via: str
    credential: str
    action: str
    kind: str
    object_id: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    reason: str
    request_id: str


class AuditEntryPage(TypedDict):
    """Audit entry page."""

    results: list[AuditEntry]
    next: str | None
    previous: str | None


class BestElement(TypedDict):
    """The element with the smallest or largest value of a metric, as last reported by the last of its ...."""

    metric: str
    goal: str
    value: float
    index: int
    job: int
    parameters: dict[str, Any]


class Budget(TypedDict):
    """A project's budget of device-hours in a period of UTC days."""

    number: int
    project: str
    kind: str
    normalised: bool
    period: str
    first_day: str
    last_day: str
    until_at: str
    hours: float
    at_end: str
    used_hours: float
    hours_per_day: float | None
    forecast_hours: float
    ends_at: str | None
    is_used_up: bool


class BudgetList(TypedDict):
    """Budget list."""

    results: list[Budget]


class BudgetSettings(TypedDict):
    """What people set of a budget."""

    project: str
    kind: NotRequired[str]
    normalised: NotRequired[bool]
    period: NotRequired[PeriodEnum]
    first_day: NotRequired[str | None]
    last_day: NotRequired[str | None]
    hours: float
    at_end: NotRequired[AtEndEnum]


class BulkAnswer(TypedDict):
    """What came of each job, in the order asked for."""

    action: str
    dry_run: bool
    done: int
    refused: int
    left: int
    more: bool
    results: list[BulkItem]
    stops: NotRequired[Stopping | None]
    queue: NotRequired[QueueEffect | None]


class BulkItem(TypedDict):
    """What came of one job."""

    number: int
    outcome: str
    state: str
    code: NotRequired[str]
    detail: NotRequired[str]
    errors: NotRequired[list[Fault]]


class Bundle(TypedDict):
    """An uploaded bundle."""

    sha256: str
    size_bytes: int


class Calendar(TypedDict):
    """What keeps nodes between two times, the earliest first."""

    since: str
    until: str
    more: bool
    results: list[CalendarSpan]


class CalendarSpan(TypedDict):
    """One time of a window (kind maintenance, with its id) or of a reservation (with its name)."""

    kind: str
    id: int | None
    name: str
    project: str
    pool: str | None
    nodes: list[str]
    starts_at: str
    ends_at: str
    recurs: bool
    reason: str


class CapacityHistory(TypedDict):
    """A value for each step."""

    step_s: int
    at: list[str]
    kinds: list[KindHistory]
    waiting: list[int]


class Checkpoint(TypedDict):
    """A resumable point that a stage confirmed."""

    stage: str
    attempt: int
    step: int
    path: str
    at: str
    took_s: float | None
    on_stop: bool


class CheckpointPage(TypedDict):
    """One page of a job's checkpoints, newest first."""

    results: list[Checkpoint]
    next: str | None
    previous: str | None


class ClaimedDevice(TypedDict):
    """A share of a device that an attempt holds or held, or a partition of it from its first slot on."""

    uuid: str
    kind: str
    vendor: str
    model: str
    index: int
    milli: int
    memory_bytes: int
    simulated: bool
    partition: str | None
    slot: int | None


class Clause(TypedDict):
    """A part of a sentence."""

    code: str
    params: dict[str, Any]


class CodeSource(TypedDict):
    """The git repository and revision from which a job has its code."""

    url: str
    rev: str
    commit: str | None
    secret: str | None
    fault: str


class Consolidation(TypedDict):
    """All advice, in queue order."""

    evaluated_at: str
    too_large: bool
    advice: list[ConsolidationAdvice]


class ConsolidationAdvice(TypedDict):
    """Moves that together would let the stage start on nodes."""

    id: str
    stage: str
    nodes: list[str]
    moves: list[ConsolidationMove]
    price: float
    gain: float
    wait_s: float
    worth: bool


class ConsolidationMove(TypedDict):
    """A running stage that would stop with a checkpoint and go on elsewhere."""

    stage: str
    nodes: list[str]
    to: list[str]
    price: float


class CounterfactualAnswer(TypedDict):
    """With all of changes the stage starts *now*, or *after* the stages in preempts were stopped."""

    starts: str
    changes: list[OneChange]
    preempts: list[str]
    instead_of: list[str]
    allowed: bool
    patch: dict[str, Any] | None


class Counts(TypedDict):
    """Jobs of the last 24 hours, nodes, and devices of all kinds (CPUs too), each by state, over all projects."""

    jobs: dict[str, int]
    nodes: dict[str, int]
    devices: dict[str, int]


class Decision(TypedDict):
    """One cycle with a changed outcome."""

    id: int
    at: str
    profile: str
    code: str
    duration_ms: float
    waiting: int
    started: list[dict[str, Any]]
    evicted: list[dict[str, Any]]
    skipped: list[str]
    waits: dict[str, int]
    head: dict[str, Any]
    replanned: str
    replanned_said: list[Clause]
    shadow: ShadowOutcome | None


class DecisionDetail(TypedDict):
    """A decision with its whole plan."""

    decision: Decision
    recorded: bool
    reproducible: bool
    profiles: dict[str, str]
    specs: dict[str, dict[str, Any]]
    running: int
    nodes: int
    starts: list[DecisionStart]
    waits: list[DecisionWait]
    hidden: int
    cut: int


class DecisionDifference(TypedDict):
    """The difference to the plan of another profile for the same world."""

    profile: str
    differs: bool
    difference: dict[str, Any]


class DecisionPage(TypedDict):
    """Decision page."""

    results: list[Decision]
    next: str | None
    previous: str | None


class DecisionStart(TypedDict):
    """A stage that the plan started, its devices, and its predicted run time there."""

    stage: str
    why: str
    why_said: list[Clause]
    nodes: list[str]
    devices: int
    expected_s: dict[str, Any]


class DecisionWait(TypedDict):
    """A stage that waited, with all its reasons in order of precedence and the number of nodes left after ...."""

    stage: str
    reasons: list[WaitReason]
    expected_start: dict[str, Any] | None
    funnel: list[list[Any]]
    funnel_said: list[Clause]


class Device(TypedDict):
    """One schedulable unit of a node."""

    uuid: str
    node: str
    kind: str
    vendor: str
    model: str
    index: int
    memory_bytes: int
    capacity_milli: int
    claimed_milli: int
    claimed_memory_bytes: int
    mode: Mode
    health: Health
    health_reason: str
    health_reason_said: list[Clause]
    simulated: bool
    division: Division | None
    sharing: str
    sample: Sample | None
    claims: list[OpenClaim]


class DeviceGrant(TypedDict):
    """What the program shows, and how it polls."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    interval: int


class DeviceMetrics(TypedDict):
    """Means of a device over each step."""

    from_at: str
    to_at: str
    step_s: float
    at: list[str]
    utilisation: list[float | None]
    memory_used_bytes: list[float | None]
    power_w: list[float | None]
    temperature_c: list[float | None]


class DevicePage(TypedDict):
    """Device page."""

    results: list[Device]
    next: str | None
    previous: str | None


class DeviceSeries(TypedDict):
    """Means of one device over each step."""

    uuid: str
    node: str
    kind: str
    model: str
    index: int
    memory_bytes: int
    simulated: bool
    utilisation: list[float | None]
    memory_used_bytes: list[float | None]
    power_w: list[float | None]
    temperature_c: list[float | None]


class Disk(TypedDict):
    """A disk, with the bytes read from it and written to it."""

    name: str
    model: str
    size_bytes: int
    is_rotating: bool
    read_bytes_per_s: float | None
    written_bytes_per_s: float | None


class Division(TypedDict):
    """How a device is partitioned."""

    mode: str
    profiles: dict[str, int]
    made: list[Partition]
    makes: bool
    whole: bool


class DrainOutcome(TypedDict):
    """What a mode of a drain does."""

    mode: str
    stops: int
    lost_device_s: float
    empty_in_s: float | None
    empty_within_s: float | None


class ElementRung(TypedDict):
    """The rung at which an element was stopped, or the highest that it reached, with what it reported there."""

    rung: int
    step: int
    value: float | None
    verdict: str
    among: int | None
    cutoff: float | None


class ExpectedStart(TypedDict):
    """The expected start of a stage, and its basis."""

    low_at: str
    high_at: str
    basis: str
    basis_said: NotRequired[list[Clause]]
    held: NotRequired[int]
    seen: NotRequired[int]


class FailureList(TypedDict):
    """The failed stages of a job, at most the first ten, in their order."""

    results: list[StageFailure]


class Fault(TypedDict):
    """One fault of a request, and its place."""

    pointer: str
    detail: str
    code: str


class FileSystem(TypedDict):
    """A mounted file system."""

    mount: str
    type: str
    size_bytes: int | None
    free_bytes: int | None


class FilledTemplate(TypedDict):
    """The job file of a template with values in its places, to be submitted."""

    job: dict[str, Any]


class FreeNodes(TypedDict):
    """So many nodes have so many whole devices free."""

    nodes: int
    free: int


class Function(TypedDict):
    """A function that answers POST at address."""

    id: int
    name: str
    project: str
    user: str
    address: str
    state: str
    file: str
    revision: int
    ready: int
    wanted: int
    min: int
    max: int
    concurrency: int
    batch: int
    max_wait_ms: int
    timeout_s: int
    tries: int
    idle_s: int
    waiting: int
    active: int
    errors: int
    cold: int
    cold_start_s: float | None
    fault: str
    traffic: ServiceTraffic
    queue: FunctionQueue


class FunctionCall(TypedDict):
    """A queued call."""

    id: int
    key: str
    user: str
    state: str
    tries: int
    status: int | None
    event: Any
    result: Any
    fault: str
    made_at: str
    due_at: str
    taken_at: str | None
    ended_at: str | None


class FunctionCallPage(TypedDict):
    """One page of the queued calls of a function, newest first."""

    results: list[FunctionCall]
    next: NotRequired[str | None]
    previous: NotRequired[str | None]


class FunctionDetail(TypedDict):
    """A function with its code, if that was sent as text and the reader is a member of its project, the job ...."""

    function: Function
    code: str
    template: dict[str, Any]
    replicas: list[ServiceReplica]
    minutes: list[FunctionMinute]


class FunctionMinute(TypedDict):
    """What was counted of a function in one minute."""

    at: str
    requests: int
    errors: int
    failed: int
    refused: int
    cold: int
    cold_start_s: float | None
    replicas: int
    first_byte_p95_s: float | None


class FunctionPage(TypedDict):
    """Function page."""

    results: list[Function]
    next: str | None
    previous: str | None


class FunctionQueue(TypedDict):
    """How many calls of a function wait in its queue, run, are done and were given up."""

    queued: int
    running: int
    done: int
    dead: int


class Fuse(TypedDict):
    """Since when the fuse is blown, null if it is not."""

    blown_at: str | None
    silent: list[str]
    nodes: int


class Gang(TypedDict):
    """The largest gang of one model that fits now."""

    kind: str
    model: str
    pool: str
    nodes: int
    each: int
    size: int
    by_node: list[FreeNodes]


class Gangs(TypedDict):
    """The largest gang of each model."""

    results: list[Gang]


class GivenUp(TypedDict):
    """How many jobs were given up."""

    given_up: int


class GroupLoad(TypedDict):
    """The devices of one group."""

    name: str
    kind: str
    devices: int
    allocated: float
    known: int
    mean: float | None
    least: float | None
    most: float | None


class Hardware(TypedDict):
    """A model of device."""

    kind: str
    vendor: str
    model: str
    count: int
    usable: int
    free: int
    nodes: int
    simulated: int
    capacity_milli: int
    claimed_milli: int
    memory_bytes: int
    rates: dict[str, float]
    memory_gbps: float | None
    watts: float | None
    per_watt: dict[str, float]
    links: list[Link]
    speeds: list[StageSpeed]


class HardwareList(TypedDict):
    """The models of the cluster, accelerators before CPUs."""

    results: list[Hardware]


class HealthCheck(TypedDict):
    """The result of one check."""

    name: str
    ok: bool
    vital: bool
    says: str


class HealthQueue(TypedDict):
    """A Celery queue."""

    name: str
    waiting: int
    workers: list[str]
    standing_by: list[str]


class HealthTask(TypedDict):
    """A Celery task."""

    name: str
    ok: bool
    done_at: str | None
    took_s: float
    failures: int
    failed_at: str | None
    error: str


class Host(TypedDict):
    """Measurements of a host."""

    at: str | None
    pressure: dict[str, float]
    interfaces: list[Interface]
    disks: list[Disk]
    file_systems: list[FileSystem]


class Installation(TypedDict):
    """All checks."""

    ok: bool
    checks: list[HealthCheck]
    queues: list[HealthQueue]
    tasks: list[HealthTask]


class Interface(TypedDict):
    """A network interface."""

    name: str
    bits_per_s: int | None
    is_up: bool
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None


class IssuedToken(TypedDict):
    """An access token of the user who confirmed."""

    access_token: str
    token_type: str
    user: str
    scopes: list[str]
    expires_at: str


class Job(TypedDict):
    """A job with its stages and its result."""

    id: str
    number: int
    name: str
    project: str
    user: str
    pool: str
    priority: Priority
    state: State
    cause: str
    simulated: bool
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    progress: float | None
    reason: WaitReason | None
    labels: dict[str, str]
    bundle: str
    source: CodeSource | None
    array: ArrayPlace | None
    parameters: dict[str, Any]
    depends_on: list[JobDependency]
    submitted_on: NodeOrigin | None
    stages: list[Stage]


class JobCounterfactuals(TypedDict):
    """The counterfactuals of the job's first waiting stages."""

    number: int
    evaluated_at: str
    too_large: bool
    stages: list[StageCounterfactuals]


class JobDependency(TypedDict):
    """An earlier job or array for whose end a job waits, by its number."""

    job: str
    when: str
    verdict: str


class JobEvent(TypedDict):
    """An event of a job."""

    job: int
    seq: int
    at: str
    kind: str
    stage: str
    attempt: int | None
    actor: str
    text: str
    text_said: list[Clause]
    params: dict[str, Any]


class JobEventPage(TypedDict):
    """Job event page."""

    results: list[JobEvent]
    next: str | None
    previous: str | None


class JobHistory(TypedDict):
    """One page of a job's events, oldest first by default."""

    results: list[JobEvent]
    next: str | None
    previous: str | None


class JobPage(TypedDict):
    """Job page."""

    results: list[Job]
    next: str | None
    previous: str | None


class JobSeries(TypedDict):
    """What a job used."""

    from_at: str
    to_at: str
    step_s: float
    at: list[str]
    devices: list[DeviceSeries]
    parts: list[PartSeries]
    truncated: bool


class JobTemplate(TypedDict):
    """A job file with parameters."""

    name: str
    project: str
    title: str
    description: str
    parameters: list[dict[str, Any]]
    job: dict[str, Any]
    made_by: str
    changed_at: str | None


class JobTemplateList(TypedDict):
    """Templates by name."""

    results: list[JobTemplate]


class JobWhy(TypedDict):
    """Why a job waits."""

    number: int
    state: State
    reason: WaitReason | None
    stages: list[WaitingStage]


class KindHistory(TypedDict):
    """Devices of a kind in each step, of CPUs cores."""

    kind: str
    allocated: list[float]
    capacity: list[float]


class Lane(TypedDict):
    """One device."""

    device: str
    node: str
    kind: str
    model: str
    index: int
    capacity_milli: int
    simulated: bool


class Limit(TypedDict):
    """How many stages and devices (other than CPUs) one user may have at once."""

    number: int
    user: str | None
    project: str | None
    pool: str | None
    running: int | None
    waiting: int | None
    devices: float | None
    whose: str
    running_now: int
    waiting_now: int
    devices_now: float


class LimitList(TypedDict):
    """Limit list."""

    results: list[Limit]


class LimitSettings(TypedDict):
    """What people set of a limit."""

    user: NotRequired[str | None]
    project: NotRequired[str | None]
    pool: NotRequired[str | None]
    running: NotRequired[int | None]
    waiting: NotRequired[int | None]
    devices: NotRequired[float | None]


class Link(TypedDict):
    """A kind of link that devices of a model report."""

    type: str
    gbps: float | None


class LinkGroup(TypedDict):
    """Devices joined by links that are faster than those through the host."""

    number: int
    types: list[str]
    gbps: float | None
    devices: list[str]


class Loads(TypedDict):
    """One metric in unit by groups."""

    metric: str
    by: str
    unit: str
    results: list[GroupLoad]


class LogMatch(TypedDict):
    """A line in which the text was found."""

    offset: int
    line_offset: int
    line: str
    is_cut: bool


class LogSearch(TypedDict):
    """What one look at a stretch of a log found."""

    results: list[LogMatch]
    next_offset: int
    size_bytes: int
    is_end: bool


class LogStream(TypedDict):
    """One stream of one rank of an attempt, and how many bytes of it are here."""

    stage: str
    attempt: int
    rank: int
    stream: str
    size_bytes: int


class LogStreamList(TypedDict):
    """The streams of a job, in the order of its stages and attempts."""

    results: list[LogStream]
    truncated: bool


class MaintenanceWindow(TypedDict):
    """A span in which a node, or all nodes of a pool, are out of service."""

    starts_at: str
    ends_at: str
    cron: str
    time_zone: str
    lasts_s: int | None
    next_starts_at: str
    next_ends_at: str
    reason: str
    made_by: str
    cancelled_at: str | None
    cancelled_by: str
    id: int
    node: str | None
    pool: str | None


class MaintenanceWindowDetail(TypedDict):
    """A window and the stages that it affects."""

    window: MaintenanceWindow
    affects: list[Affected]
    hidden: int


class MaintenanceWindowPage(TypedDict):
    """Maintenance window page."""

    results: list[MaintenanceWindow]
    next: str | None
    previous: str | None


class MapDevice(TypedDict):
    """One cell of the map."""

    uuid: str
    index: int
    kind: str
    model: str
    u: float | None
    state: str
    job: int | None
    project: str | None
    milli: int
    capacity: int
    simulated: bool


class MapNode(TypedDict):
    """One row of the map."""

    name: str
    state: NodeState
    pools: list[str]
    simulated: bool
    devices: list[MapDevice]


class MeasuredLink(TypedDict):
    """The bandwidth from another node in Gbit/s, as measured from inputs that came from there, the last at."""

    node: str
    gbps: float
    at: str


class Member(TypedDict):
    """A person's role in a project."""

    user: str
    role: RoleEnum


class Membership(TypedDict):
    """A project of yours and your role in it."""

    project: str
    role: NotRequired[RoleEnum]


class MovedJob(TypedDict):
    """A waiting stage whose expected start moves."""

    number: int
    name: str
    stage: str
    project: str
    was_at: str | None
    then_at: str | None
    later_s: float | None
    is_chosen: bool


class NearDevice(TypedDict):
    """The place of a device in its node."""

    name: str
    uuid: str
    kind: str
    model: str
    numa: int | None
    group: int | None
    pcie: str
    memory_gbps: float | None
    busy: float | None
    links: list[NearLink]


class NearLink(TypedDict):
    """A link of a device."""

    peer: str
    type: str
    gbps: float | None


class NewWebhook(TypedDict):
    """A webhook with the key of its signatures, which is shown this once."""

    webhook: Webhook
    key: str


class NewestCheckpoint(TypedDict):
    """The newest resumable point of a stage."""

    step: int
    path: str
    at: str


class NextStart(TypedDict):
    """A waiting stage that is expected to start soon."""

    number: int
    name: str
    stage: str
    asks: str
    asks_said: list[Clause]
    device_kind: str
    expected_start: ExpectedStart | None


class Node(TypedDict):
    """A machine that runs an agent."""

    id: str
    name: str
    state: NodeState
    reason: str
    reason_said: list[Clause]
    drain_stop_at: str | None
    pools: list[str]
    simulated: bool
    runs_as: str
    isolation: str
    too_open_for: list[str]
    container_engine: str | None
    mounts: list[str]
    executor: str
    lacks: list[str]
    lacks_said: list[list[Clause]]
    agent_version: str
    hostname: str
    os: str
    arch: str
    memory_bytes: int
    last_report_at: str | None
    conditions: dict[str, Any]
    alarms: list[str]
    alarms_said: list[list[Clause]]
    labels: dict[str, str]
    maintenance: list[MaintenanceWindow]
    devices: list[Device]


class NodeAmounts(TypedDict):
    """What a node has as a whole for its stages, and what they hold of it."""

    disk_total_bytes: int
    disk_bytes: int
    disk_held_bytes: int
    disk_mbps: int
    disk_held_mbps: int
    network_mbps: int
    network_held_mbps: int


class NodeDetail(TypedDict):
    """A machine that runs an agent, with measurements of its host."""

    id: str
    name: str
    state: NodeState
    reason: str
    reason_said: list[Clause]
    drain_stop_at: str | None
    pools: list[str]
    simulated: bool
    runs_as: str
    isolation: str
    too_open_for: list[str]
    container_engine: str | None
    mounts: list[str]
    executor: str
    lacks: list[str]
    lacks_said: list[list[Clause]]
    agent_version: str
    hostname: str
    os: str
    arch: str
    memory_bytes: int
    last_report_at: str | None
    conditions: dict[str, Any]
    alarms: list[str]
    alarms_said: list[list[Clause]]
    labels: dict[str, str]
    maintenance: list[MaintenanceWindow]
    devices: list[Device]
    amounts: NodeAmounts
    host: Host | None
    survivors: list[Survivor]


class NodeDrain(TypedDict):
    """A drain of nodes, or, in a dry run, what it would do."""

    nodes: list[str]
    states: list[str]
    dry_run: bool
    version: str
    affects: Stopping
    outcomes: list[DrainOutcome]


class NodeOrigin(TypedDict):
    """The node on which a job was submitted itself while it was cut off, and the account of that node."""

    node: str
    account: str
    joined_at: str


class NodePage(TypedDict):
    """Node page."""

    results: list[Node]
    next: str | None
    previous: str | None


class NodeProvider(TypedDict):
    """A foreign engine that runs this cluster's agents as nodes of pool while there is work for them."""

    name: str
    kind: str
    pool: str
    settings: dict[str, Any]
    shapes: list[dict[str, Any]]
    min_nodes: int
    max_nodes: int
    hours: float
    budget_node_hours: float | None
    used_node_hours: float
    idle_s: int
    wait_s: int
    enabled: bool
    condition: str
    condition_said: list[Clause]
    condition_at: str | None
    failures: int
    retry_at: str | None
    looked_at: str | None
    pilots: dict[str, int]


class NodeProviderList(TypedDict):
    """Node provider list."""

    results: list[NodeProvider]


class NodeProviderSettings(TypedDict):
    """What people set of a provider."""

    name: str
    kind: str
    pool: str
    settings: NotRequired[Any]
    shapes: NotRequired[Any]
    min_nodes: NotRequired[int]
    max_nodes: NotRequired[int]
    hours: NotRequired[float]
    budget_node_hours: NotRequired[float | None]
    idle_s: NotRequired[int]
    wait_s: NotRequired[int]
    enabled: NotRequired[bool]


class NodeSettings(TypedDict):
    """What people set of a node."""

    pools: list[str]
    labels: dict[str, str | None]


class OneChange(TypedDict):
    """One change of the stage or the cluster."""

    kind: str
    text: str
    who: str
    params: dict[str, Any]


class OpenClaim(TypedDict):
    """A share that is held now, or a partition from its first slot on."""

    job: int | None
    stage: str | None
    project: str | None
    user: str | None
    milli: int
    memory_bytes: int
    partition: str | None
    slot: int | None


class OpenedPort(TypedDict):
    """A port that was opened."""

    session: str
    url: str
    expires_at: str


class Operation(TypedDict):
    """An action on many jobs."""

    id: int
    user: str
    action: str
    filter: dict[str, str]
    patch: dict[str, Any] | None
    reason: str
    phase: str
    progress: float
    matched: int
    done: int
    refused: int
    refusals: list[OperationRefusal]
    fault: str
    created_at: str
    started_at: str | None
    ended_at: str | None


class OperationPage(TypedDict):
    """Operation page."""

    results: list[Operation]
    next: str | None
    previous: str | None


class OperationRefusal(TypedDict):
    """Why the action was not done to a job."""

    number: int
    code: str
    detail: str


class Overview(TypedDict):
    """The overview of the cluster."""

    profile: str
    tiles: list[Tile]
    nodes: list[MapNode]
    queue: Queue
    running: list[RunningStage]
    running_count: int
    attention: list[Sign]
    attention_count: int
    counts: Counts


class OwnToken(TypedDict):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    expires_at: str
    last_used_at: str | None
    is_current: bool


class OwnTokenList(TypedDict):
    """Own token list."""

    results: list[OwnToken]


class PartSeries(TypedDict):
    """Means of the processes of one rank of an attempt over each step."""

    stage: str
    attempt: int
    rank: int
    node: str
    cpu: list[float | None]
    rss_bytes: list[float | None]


class Partition(TypedDict):
    """A partition of a device."""

    profile: str
    slot: int | None
    size: int
    uuid: str


class PastClaim(TypedDict):
    """A share of a device that was held, or still is if closed_at is null."""

    job: int | None
    name: str | None
    stage: str | None
    attempt: int | None
    project: str | None
    user: str | None
    milli: int
    memory_bytes: int
    partition: str | None
    opened_at: str
    closed_at: str | None


class PastClaimPage(TypedDict):
    """One page of a device's claims, newest first."""

    results: list[PastClaim]
    next: NotRequired[str | None]
    previous: NotRequired[str | None]


class Pilot(TypedDict):
    """One allocation of a foreign engine that runs, or ran, an agent of this cluster."""

    id: str
    provider: str
    shape: str
    hours: float
    label: str
    handle: str
    state: str
    why: str
    node: str | None
    created_at: str
    up_at: str | None
    joined_at: str | None
    ends_at: str | None
    leaving_at: str | None
    gone_at: str | None


class PilotList(TypedDict):
    """Pilot list."""

    results: list[Pilot]


class Placed(TypedDict):
    """One rank of an attempt."""

    node: str
    rank: int
    devices: list[ClaimedDevice]


class Planned(TypedDict):
    """The timetable's entry of a waiting stage."""

    start_at: str
    end_at: str
    devices: list[PlannedDevice]


class PlannedDevice(TypedDict):
    """A device that the timetable keeps for a stage."""

    uuid: str
    node: str
    kind: str
    model: str
    index: int


class Pool(TypedDict):
    """A named set of nodes with its own profile and limits."""

    name: str
    profile: str
    decides: str
    shadow_profile: str
    shadow: ShadowSum | None
    promises: Promises
    shared_storage: bool
    mounts: list[PoolMount]
    default_limit_s: int
    max_limit_s: int
    min_runtime_s: int
    on_node_lost: str
    stopped_by: str
    repartition: bool
    measure_links: bool
    isolation: str
    nodes: int
    restricted: bool
    usable: bool


class PoolList(TypedDict):
    """Pool list."""

    results: list[Pool]


class PoolMount(TypedDict):
    """A folder of the nodes of which jobs may mount what is in it, also to write there if it is writable."""

    path: str
    writable: bool


class PoolSettings(TypedDict):
    """What people set of a pool."""

    name: str
    profile: NotRequired[str]
    shadow_profile: NotRequired[str]
    storage_path: NotRequired[str]
    default_limit_s: NotRequired[int]
    max_limit_s: NotRequired[int]
    min_runtime_s: NotRequired[int]
    mounts: NotRequired[Any]
    on_node_lost: NotRequired[OnNodeLostEnum]
    user_limit: NotRequired[int | None]
    isolation: NotRequired[IsolationEnum]
    repartition: NotRequired[bool]
    measure_links: NotRequired[bool]
    stopped_by: NotRequired[str]


class PoolUsers(TypedDict):
    """Who may use a pool, by name."""

    projects: NotRequired[list[str]]
    groups: NotRequired[list[str]]
    restricted: NotRequired[bool]


Priority = TypedDict("Priority", {"class": "str", "value": "int"})


class PriorityClass(TypedDict):
    """A named number."""

    name: str
    value: int
    preemptible: bool
    restricted: bool
    projects: list[str] | None
    usable: bool


class PriorityClassList(TypedDict):
    """Priority class list."""

    results: list[PriorityClass]


class PriorityClassSettings(TypedDict):
    """A named number."""

    name: str
    value: int
    preemptible: NotRequired[bool]
    restricted: NotRequired[bool]
    projects: NotRequired[list[str] | None]


class Profile(TypedDict):
    """A named set of policies."""

    name: str
    description: str
    builtin: bool
    active: int | None
    newest: int | None
    pools: list[str]
    beside: list[str]


class ProfileDetail(TypedDict):
    """A profile with its policies."""

    profile: Profile
    spec: dict[str, Any]
    versions: list[ProfileVersion]


class ProfileList(TypedDict):
    """Built-in profiles, then custom ones by name."""

    results: list[Profile]
    default: str


class ProfileSettings(TypedDict):
    """What may change of a custom profile."""

    description: NotRequired[str]


class ProfileVersion(TypedDict):
    """One version of a custom profile."""

    number: int
    spec: dict[str, Any]
    note: str
    made_by: str
    made_at: str
    preview: int | None
    preview_phase: str
    activated_by: str
    activated_at: str | None


class Project(TypedDict):
    """The tenant that owns jobs, quota and fair share."""

    name: str
    weight: float
    description: str
    role: str | None
    members: list[ProjectMember]
    lost_device_s: float
    cost_device_s: float


class ProjectList(TypedDict):
    """Project list."""

    results: list[Project]


class ProjectMember(TypedDict):
    """A person's role in a project."""

    user: str
    role: str


class ProjectRetention(TypedDict):
    """How long a project's records are kept."""

    project: str
    rules: list[RetentionRule]


class ProjectSettings(TypedDict):
    """What people set of a project."""

    name: str
    weight: NotRequired[float]
    description: NotRequired[str]


class ProjectShare(TypedDict):
    """The fair share of a project."""

    project: str
    weight: float
    target: float
    received: float


class Promises(TypedDict):
    """Of told stages to which an expected start was announced in the last seven days, kept started by the ...."""

    kept: int
    told: int
    rate: float | None


class Queue(TypedDict):
    """The length of the queue over all projects, and those of your stages that are expected to start first."""

    waiting: int
    oldest_at: str | None
    next: list[NextStart]


class QueueEffect(TypedDict):
    """What changes for the queue, by planning it with and without the change at at."""

    at: str | None
    back: int
    forward: int
    hidden: int
    moves: list[MovedJob]
    stops: NotRequired[int]
    stopped: NotRequired[list[int]]
    fault: NotRequired[str]


class QueueSlice(TypedDict):
    """A part of the queue, by pool and place."""

    results: list[QueuedJob]
    total: int


class QueuedJob(TypedDict):
    """A waiting job."""

    place: int | None
    job: Job


class Quota(TypedDict):
    """A project's quota of devices of a kind, and of a model if one is named, in devices (CPU."""

    number: int
    project: str
    kind: str
    model: str
    normalised: bool
    cohort: str
    nominal: float | None
    borrowing_limit: float | None
    lending_limit: float | None
    held: float
    borrowed: float
    lent: float


class QuotaList(TypedDict):
    """Quota list."""

    results: list[Quota]


class QuotaSettings(TypedDict):
    """What people set of a quota."""

    project: str
    kind: str
    model: NotRequired[str]
    normalised: NotRequired[bool]
    cohort: NotRequired[str]
    nominal: NotRequired[float | None]
    borrowing_limit: NotRequired[float | None]
    lending_limit: NotRequired[float | None]


class Receipt(TypedDict):
    """What a job held and used, up to as_of while it runs."""

    job: int
    name: str
    project: str
    user: str
    state: str
    as_of: str
    measured_until: str | None
    wait_s: float
    energy_j: float | None
    co2_g: float | None
    currency: str
    cost: float | None
    is_priced_whole: bool
    advice: str
    advice_said: list[dict[str, Any]]
    lines: list[ReceiptLine]


class ReceiptLine(TypedDict):
    """The device time of one stage on devices of one kind and model, in seconds of a device, of CPU of a core."""

    stage: str
    kind: str
    model: str
    attempts: int
    allocated_device_s: float
    busy_device_s: float
    idle_device_s: float
    unknown_device_s: float
    lost_preempted_device_s: float
    lost_failed_device_s: float
    energy_j: float | None
    powered_device_s: float
    cost: float | None
    unpriced_device_s: float


class ReleasedDevice(TypedDict):
    """The memory of a device that a part held."""

    uuid: str
    before_bytes: NotRequired[int | None]
    most_bytes: NotRequired[int | None]
    left_bytes: NotRequired[int | None]
    after_s: NotRequired[float | None]
    is_back: NotRequired[bool | None]


class ReportedList(TypedDict):
    """The reports of a job's attempts, in the order of its stages."""

    results: list[ReportedNumbers]


class ReportedNumbers(TypedDict):
    """What one attempt reported."""

    stage: str
    attempt: int
    series: list[ReportedSeries]


class ReportedSeries(TypedDict):
    """One metric over the steps."""

    name: str
    steps: list[float]
    values: list[float | None]
    reports: int


class Reservation(TypedDict):
    """A span in which whole nodes are for jobs of a project, or of some of its users, that name the reservation."""

    starts_at: str
    ends_at: str
    cron: str
    time_zone: str
    lasts_s: int | None
    next_starts_at: str
    next_ends_at: str
    reason: str
    made_by: str
    cancelled_at: str | None
    cancelled_by: str
    name: str
    project: str
    users: list[str]
    nodes: list[str]


class ReservationPage(TypedDict):
    """Reservation page."""

    results: list[Reservation]
    next: str | None
    previous: str | None


class ResolvedDemand(TypedDict):
    """The resolved demand of one stage."""

    stage: str
    request: dict[str, Any]


class RetentionDue(TypedDict):
    """Records of one kind that would be removed now, by project if the kind has projects."""

    kind: str
    project: str | None
    days: int | None
    rows: int
    size_bytes: int
    oldest: str | None
    at_least: bool


class RetentionDueList(TypedDict):
    """Records that would be removed now, by kind and project."""

    results: list[RetentionDue]


class RetentionRule(TypedDict):
    """How long one kind of a project's records is kept."""

    kind: str
    days: int | None
    own_days: int | None
    least_days: int
    log_bytes: int | None


class RunTime(TypedDict):
    """The predicted run time of a stage."""

    p50: float | None
    p90: float | None
    basis: str
    basis_said: NotRequired[list[Clause]]
    held: NotRequired[int]
    seen: NotRequired[int]


class Rung(TypedDict):
    """A rung of successive halving."""

    rung: int
    step: int
    reached: int
    stopped: int
    best: float | None


class RunningStage(TypedDict):
    """A stage that holds devices."""

    number: int
    name: str
    stage: str
    state: str
    project: str
    user: str
    asks: str
    asks_said: list[Clause]
    device_kind: str
    started_at: str | None
    progress: float | None


class Sample(TypedDict):
    """The newest measurement of a device."""

    utilisation: float | None
    memory_used_bytes: int | None
    power_w: float | None
    temperature_c: float | None
    at: str


class Schedule(TypedDict):
    """A job file that is submitted as user at each time of a cron line in a time zone."""

    id: int
    name: str
    project: str
    user: str
    cron: str
    zone: str
    overlap: str
    catch_up: str
    starts_at: str | None
    ends_at: str | None
    paused: bool
    next_at: str | None
    fault: str
    refusals: int
    last: ScheduleRun | None


class ScheduleDetail(TypedDict):
    """A schedule with its job file, its next five times and its newest twenty runs."""

    schedule: Schedule
    job: dict[str, Any]
    times: list[str]
    runs: list[ScheduleRun]


class SchedulePage(TypedDict):
    """Schedule page."""

    results: list[Schedule]
    next: str | None
    previous: str | None


class ScheduleRun(TypedDict):
    """What became of one time of a schedule."""

    due_at: str
    at: str
    outcome: str
    job: int | None
    is_array: bool
    detail: str


class Search(TypedDict):
    """What was found by a search."""

    results: list[SearchHit]


class SearchHit(TypedDict):
    """What was found."""

    kind: str
    name: str
    detail: str
    state: str
    path: str


class Secret(TypedDict):
    """A named value that stages of the project get."""

    name: str
    version: int
    created_at: str
    created_by: str
    updated_at: str
    updated_by: str
    last_used_at: str | None


class SecretList(TypedDict):
    """The secrets of a project by name, and what you may do with them."""

    results: list[Secret]
    may_set: bool
    may_delete: bool


class Segment(TypedDict):
    """A share of a device over a span."""

    lane: str
    job: int | None
    name: str | None
    stage: str | None
    kind: str | None
    attempt: int | None
    project: str | None
    user: str | None
    state: str
    cause: str
    milli: int
    start_at: str
    end_at: str | None
    expected_end_at: str | None
    overdue_since_at: str | None
    planned: bool


class Service(TypedDict):
    """A model that answers requests at address."""

    id: int
    name: str
    project: str
    user: str
    address: str
    state: str
    revision: int
    former: int | None
    canary: int
    ready: int
    wanted: int
    min: int
    max: int
    queued: int
    active: int
    cold_start_s: float | None
    fault: str
    traffic: ServiceTraffic


class ServiceAccount(TypedDict):
    """A user for a program, in one project."""

    name: str
    project: str
    role: str | None
    is_active: bool
    description: str
    created_at: str
    tokens: int
    last_used_at: str | None


class ServiceAccountList(TypedDict):
    """Service account list."""

    results: list[ServiceAccount]


class ServiceDetail(TypedDict):
    """A service with its file, its replicas (open ones and the newest that ended), revisions and last hour."""

    service: Service
    file: dict[str, Any]
    settings: dict[str, Any]
    replicas: list[ServiceReplica]
    revisions: list[ServiceRevisionShown]
    minutes: list[ServiceMinuteShown]


class ServiceMinuteShown(TypedDict):
    """What was counted in one minute."""

    at: str
    requests: int
    failed: int
    refused: int
    queued: int
    replicas: int
    first_byte_p95_s: float | None


class ServicePage(TypedDict):
    """Service page."""

    results: list[Service]
    next: str | None
    previous: str | None


class ServiceReplica(TypedDict):
    """One replica."""

    id: int
    revision: int
    job: int | None
    node: str
    port: int
    state: str
    outstanding: int
    running: int | None
    waiting: int | None
    cache: float | None
    made_at: str
    ready_at: str | None
    ended_at: str | None
    fault: str


class ServiceRevisionShown(TypedDict):
    """A version of what the replicas run."""

    number: int
    made_by: str
    made_at: str
    ready_at: str | None
    failed: bool
    fault: str


class ServiceTraffic(TypedDict):
    """What the routers counted in the last five minutes."""

    requests: int
    requests_per_s: float
    failed: int
    refused: int
    retried: int
    first_byte_p50_s: float | None
    first_byte_p95_s: float | None
    within_slo: float | None


class ShadowOutcome(TypedDict):
    """The outcome of the pools' shadow profiles in this cycle."""

    profile: str
    duration_ms: float
    differs: bool
    difference: dict[str, Any]


class ShadowSum(TypedDict):
    """What the shadow profile would have done in its last cycles cycles (a thousand at most)."""

    cycles: int
    differing: int
    only_active: int
    only_other: int
    elsewhere: int
    spared: int
    evicted: int
    earlier_s: float | None


class Sign(TypedDict):
    """Something that needs attention."""

    level: str
    code: str
    params: dict[str, Any]
    title: str
    detail: str
    href: str
    action: str


class SignalSent(TypedDict):
    """To how many processes of a job a signal goes."""

    number: int
    signal: str
    processes: int


class Simulation(TypedDict):
    """A simulation."""

    id: int
    name: str
    user: str
    source: str
    phase: str
    progress: float
    doing: str
    doing_said: list[Clause]
    fault: str
    fault_said: list[Clause]
    profiles: list[str]
    loads: list[float]
    seeds: list[int]
    created_at: str
    started_at: str | None
    ended_at: str | None
    simulated: bool


class SimulationDetail(TypedDict):
    """A simulation with its request (without a trace sent as text) and, once it is done, its result."""

    simulation: Simulation
    scenario: dict[str, Any]
    result: dict[str, Any] | None


class SimulationPage(TypedDict):
    """Simulation page."""

    results: list[Simulation]
    next: str | None
    previous: str | None


class Site(TypedDict):
    """Another cluster to which jobs may leave."""

    name: str
    url: str
    state: str
    enabled: bool
    fingerprint: str
    project: str
    pools: list[str]
    locations: list[str]
    price: float
    patience_s: int
    gain_s: int
    most_jobs: int
    lost_after_s: int
    has_token: bool
    devices: list[SiteDevices]
    waiting: int | None
    capacity_at: str | None
    our_jobs: dict[str, int]
    condition: str
    condition_said: list[Clause]
    condition_at: str | None
    failures: int
    retry_at: str | None
    answered_at: str | None


class SiteDevices(TypedDict):
    """Devices of one model at a site."""

    kind: str
    model: str
    count: int
    free: int


class SiteJob(TypedDict):
    """A job of ours that is, or was, at a site."""

    job: int
    stage: str
    name: str
    site: str
    number: int | None
    state: str
    reason: str
    fault: str
    is_unknown: bool
    created_at: str
    asked_at: str | None
    looked_at: str | None
    over_at: str | None


class SiteJobList(TypedDict):
    """Site job list."""

    results: list[SiteJob]


class SiteList(TypedDict):
    """Site list."""

    results: list[Site]


class SiteSettings(TypedDict):
    """What people set of a site."""

    name: str
    url: str
    fingerprint: NotRequired[str]
    project: NotRequired[str]
    pools: NotRequired[Any]
    locations: NotRequired[Any]
    price: NotRequired[float]
    patience_s: NotRequired[int]
    gain_s: NotRequired[int]
    most_jobs: NotRequired[int]
    lost_after_s: NotRequired[int]
    enabled: NotRequired[bool]


class Stage(TypedDict):
    """The unit that is scheduled."""

    id: str
    name: str
    kind: str
    index: int
    needs: list[str]
    state: State
    state_at: str | None
    substate: str
    substate_said: list[Clause]
    cause: str
    detail: str
    detail_said: list[Clause]
    exit_code: int | None
    asks: str
    asks_said: list[Clause]
    device_kind: str
    memory_bytes: int
    only_on: list[str]
    avoid: list[str]
    constraint: str
    reservation: str
    deadline_at: str | None
    nodes: int
    least_nodes: int
    most_nodes: int
    attempts: int
    max_attempts: int
    preemptions: int
    time_limit_s: float | None
    preemptible: bool
    placed: list[Placed]
    why_here: str
    why_here_said: list[Clause]
    progress: StageProgress | None
    values: dict[str, Any]
    reason: WaitReason | None
    reasons: list[WaitReason]
    funnel: list[list[Any]]
    funnel_said: list[Clause]
    expected_start: ExpectedStart | None
    expected_s: RunTime | None
    planned: Planned | None
    evaluated_at: str | None
    begin_at: str | None
    retry_at: str | None
    eligible_at: str | None
    started_at: str | None
    ended_at: str | None
    checkpoint: NewestCheckpoint | None
    checkpoint_every_s: float | None
    checkpoint_every_why: str
    checkpoint_every_why_said: list[Clause]
    utilization_policy: UtilizationPolicy | None
    held_idle: str
    held_idle_said: list[Clause]


class StageCounterfactuals(TypedDict):
    """The counterfactuals of one stage."""

    stage: str
    id: str
    tries: int
    cut: bool
    answers: list[CounterfactualAnswer]


class StageFailure(TypedDict):
    """Why a stage failed."""

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


class StagePace(TypedDict):
    """The speed of a running stage."""

    stage: str
    attempt: int
    step: int
    total: int | None
    steps_per_s: float
    over_s: float
    at: str
    low_at: str | None
    high_at: str | None


class StagePaceList(TypedDict):
    """The stages that run and report their steps often enough to have a speed."""

    results: list[StagePace]


class StageProgress(TypedDict):
    """The progress that a stage reported."""

    step: int | None
    total: int | None
    phase: str


class StageSpeed(TypedDict):
    """How fast the scheduler takes stages of this kind to be on a model."""

    kind: str
    speed: float
    is_declared: bool
    suits: bool


class StageTrace(TypedDict):
    """A profile of what a stage did on one node, that of rank, for some seconds."""

    id: str
    stage: str
    attempt: int
    rank: int
    node: str
    tool: str
    seconds: int
    state: str
    detail: str
    detail_said: list[Clause]
    size_bytes: int
    asked_by: str
    asked_at: str
    began_at: str | None
    ended_at: str | None


class StageWait(TypedDict):
    """The time that a stage spent waiting, from its submission or the end of an attempt to the next attempt."""

    stage: str
    waited_s: float
    unrecorded_s: float
    causes: list[WaitCause]


class StoppedStage(TypedDict):
    """A running stage that would stop."""

    job: int
    name: str
    stage: str
    user: str
    project: str
    nodes: list[str]
    devices: float
    saved_at: str | None
    lost_device_s: float
    grace_s: float
    expected_end_at: str | None
    ends_by: str | None


class Stopping(TypedDict):
    """What stops together."""

    jobs: int
    owners: list[str]
    lost_device_s: float
    hidden: int
    stages: list[StoppedStage]


class SubmittedSpec(TypedDict):
    """A job file and its resolved form."""

    number: int
    spec: dict[str, Any]
    stages: list[ResolvedDemand]


class Survivor(TypedDict):
    """A part that runs on a node but is missing from the database, which was restored from a backup."""

    part: str
    node: str
    ended: bool
    pid: int | None
    devices: list[str]
    since: str
    stopped_by: str


class SurvivorList(TypedDict):
    """Survivor list."""

    results: list[Survivor]


class SweepHalving(TypedDict):
    """By which rule elements of a sweep are stopped early, and how many reached its rungs."""

    metric: str
    goal: Goal
    min_steps: int
    reduction_factor: int
    rungs: list[Rung]


class Tile(TypedDict):
    """Devices of one kind and model, counted in unit (cores for CPUs)."""

    kind: str
    model: str
    unit: str
    total: float
    healthy: float
    allocated: float
    used_mean: float | None
    held_idle: float
    offline: float
    simulated: bool


class Timeline(TypedDict):
    """Lanes and segments of a span, of node_count nodes in their natural order or of a part of these."""

    now: str
    from_at: str
    to_at: str
    lanes: list[Lane]
    segments: list[Segment]
    node_count: int
    truncated: bool


class TokenMade(TypedDict):
    """A new token with its secret, which is returned once."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    expires_at: str
    last_used_at: str | None
    is_current: bool
    secret: str


class Topology(TypedDict):
    """A node and its network domain."""

    node: str
    domain: str
    gbps: float | None
    is_measured: bool
    measured: list[MeasuredLink]
    load: float
    groups: list[LinkGroup]
    devices: list[NearDevice]


class TopologyPage(TypedDict):
    """Topology page."""

    results: list[Topology]
    next: str | None
    previous: str | None


class TraceList(TypedDict):
    """The traces of a job, newest first."""

    results: list[StageTrace]


class TriedDelivery(TypedDict):
    """How telling one event went."""

    event: str
    type: str
    job: int | None
    at: str
    state: str
    status: int | None
    fault: str
    tries: int
    tried_at: str
    took_s: float
    next_try_at: str | None


class TriedDeliveryList(TypedDict):
    """The newest deliveries of a webhook that were tried."""

    results: list[TriedDelivery]


class UsageReport(TypedDict):
    """Usage from the first to the last UTC day, both included."""

    from_day: str
    to_day: str
    by: list[str]
    as_of: str | None
    is_complete: bool
    is_cut: bool
    currency: str
    results: list[UsageRow]
    rest: list[UsageRow]
    job_count: int | None
    shares: list[ProjectShare]


class UsageRow(TypedDict):
    """The use of devices of one kind."""

    kind: str
    day: str | None
    project: str | None
    user: str | None
    job: int | None
    job_name: str | None
    pool: str | None
    model: str | None
    allocated_device_s: float
    busy_device_s: float
    idle_device_s: float
    unknown_device_s: float
    lost_preempted_device_s: float
    lost_failed_device_s: float
    charged_device_s: float
    attempts: int
    energy_j: float | None
    powered_device_s: float
    co2_g: float | None
    cost: float | None
    unpriced_device_s: float


class UtilizationPolicy(TypedDict):
    """What happens to a stage whose accelerators are used to less than min on average over window_s seconds."""

    min: float
    window_s: float
    action: str


class Version(TypedDict):
    """The server's version and the agents that it accepts."""

    server: str
    api: str
    cluster: str
    agent_proto: int
    agent_min_proto: int


class WaitCause(TypedDict):
    """The time for which code was the first reason."""

    code: str
    of: str
    acts: str
    waited_s: float
    share: float


class WaitReason(TypedDict):
    """Why a stage waits, and who can change that."""

    code: str
    text: str
    acts: str
    params: dict[str, Any]


class WaitingStage(TypedDict):
    """Why one stage waits."""

    stage: str
    state: State
    reasons: list[WaitReason]
    funnel: list[list[Any]]
    funnel_said: list[Clause]
    expected_start: ExpectedStart | None
    expected_s: RunTime | None
    planned: Planned | None
    evaluated_at: Any


class Waits(TypedDict):
    """The waits of a job's stages, in their order."""

    results: list[StageWait]


class WebPort(TypedDict):
    """A port that a stage names in its job file, on one node, that of rank."""

    job: int
    job_name: str
    project: str
    user: str
    stage: str
    rank: int
    node: str
    name: str
    port: int
    state: str
    listens: bool
    may_open: bool
    idle_timeout_s: float | None
    visited_at: str | None


class WebPortList(TypedDict):
    """Named ports."""

    results: list[WebPort]


class Webhook(TypedDict):
    """An address that is told when a job of the project enters one of states, unless it is switched off."""

    name: str
    url: str
    format: str
    states: list[str]
    active: bool
    created_at: str
    made_by: str
    delivered_at: str | None
    retry_at: str | None
    failures: int
    fault: str
    waiting: int


class WebhookList(TypedDict):
    """The webhooks of a project by name."""

    results: list[Webhook]


class WebhookTest(TypedDict):
    """How a test went."""

    event: str
    status: int | None
    fault: str
    took_s: float
    answer: str


class Whoami(TypedDict):
    """The user as this server sees them."""

    user: str
    name: str
    staff: bool
    roles: list[str]
    default_project: str | None
    projects: list[Membership]
    scopes: list[str]
    token_expires_at: str | None


class JobItems(dict[str, Any]):
    """The items of a job in a dictionary that has methods of its own."""

    @overload
    def __getitem__(self, key: Literal["id"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["number"]) -> int: ...

    @overload
    def __getitem__(self, key: Literal["name"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["project"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["user"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["pool"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["priority"]) -> Priority: ...

    @overload
    def __getitem__(self, key: Literal["state"]) -> State: ...

    @overload
    def __getitem__(self, key: Literal["cause"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["simulated"]) -> bool: ...

    @overload
    def __getitem__(self, key: Literal["submitted_at"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["started_at"]) -> str | None: ...

    @overload
    def __getitem__(self, key: Literal["ended_at"]) -> str | None: ...

    @overload
    def __getitem__(self, key: Literal["progress"]) -> float | None: ...

    @overload
    def __getitem__(self, key: Literal["reason"]) -> WaitReason | None: ...

    @overload
    def __getitem__(self, key: Literal["labels"]) -> dict[str, str]: ...

    @overload
    def __getitem__(self, key: Literal["bundle"]) -> str: ...

    @overload
    def __getitem__(self, key: Literal["source"]) -> CodeSource | None: ...

    @overload
    def __getitem__(self, key: Literal["array"]) -> ArrayPlace | None: ...

    @overload
    def __getitem__(self, key: Literal["parameters"]) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: Literal["depends_on"]) -> list[JobDependency]: ...

    @overload
    def __getitem__(self, key: Literal["submitted_on"]) -> NodeOrigin | None: ...

    @overload
    def __getitem__(self, key: Literal["stages"]) -> list[Stage]: ...

    @overload
    def __getitem__(self, key: str) -> Any: ...

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)
