"""The agent's process: enrols, takes over running parts, and runs link, logs and telemetry of its node (or nodes).

Ending the agent ends no part; ``stop-all`` does. One process may host many simulated nodes, each with its own identity.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import importlib.util
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from agents import VERSION, stop_all, survey
from agents.decode import digits, setting
from agents.delegated.capacity import Delegation, read_delegation
from agents.delegated.executor import DelegatedExecutor, delegated
from agents.devices import vendors
from agents.devices.files import DriverFiles
from agents.devices.instances import Instances
from agents.devices.partitions import missing
from agents.devices.vendors import command, simulated
from agents.edge.allowance import read_allowances
from agents.edge.control_socket import ControlSocket
from agents.edge.ledger import LocalLedger
from agents.edge.local_jobs import LocalJobs
from agents.ends import clause, told
from agents.isolation import cgroup
from agents.isolation.allowed import Allowed
from agents.isolation.level import level
from agents.isolation.mounts import MountRoots
from agents.isolation.run_as import RunAs
from agents.isolation.users import USUAL, chosen
from agents.isolation.view import why_not
from agents.link import enrol
from agents.link.connection import ServerConnection
from agents.link.listening import watch_ports
from agents.link.renewal import Renewal
from agents.link.server import Server
from agents.protocol import Enrolled, Exit
from agents.resources.cores import known_cores
from agents.resources.turns import Turns
from agents.runtimes.choice import Choice
from agents.runtimes.container import ContainerExecutor, images_in_use
from agents.runtimes.engine_watch import EngineWatch
from agents.runtimes.process import Ground, ProcessExecutor
from agents.storage.bring_up import add_arguments, open_staging
from agents.storage.bundle import BundleCache
from agents.storage.collection import CacheLimits, Collector
from agents.storage.staging import Staging
from agents.supervisor import procfs
from agents.supervisor.fork_client import ForkClient
from agents.supervisor.record import take, write_whole
from agents.supervisor.small_file import content
from agents.systemd import Systemd
from agents.tasks.health import EVERY_S, HealthChecks
from agents.tasks.journal import Journal
from agents.tasks.local import expire_for_ever, prepare_folder
from agents.tasks.node import NodeTasks
from agents.tasks.scripts import listed as listed_programs
from agents.telemetry import bandwidth, metrics
from agents.telemetry.host import HostView, address_towards
from agents.telemetry.logs import WEAK_PERIOD_S, LogShipper
from agents.telemetry.metrics_server import MetricsServer, endpoint
from agents.telemetry.sampling import Meter

PROCESSES = 16_384
LOG_CAP_BYTES = 256 << 20
LOG_BYTES_PER_S = 16 << 20
GIVEN = ("runtime", "step", "function")
log = logging.getLogger("switchyard.agent")


class AgentNode(msgspec.Struct):
    """One node of this process: its name, its folder and its machine (a simulated shape, or this host)."""

    name: str
    state: Path
    shape: str | None = None


def members(name: str, state: Path, simulate: str | None, with_host: bool) -> list[AgentNode]:
    """Return the nodes of this process: this host, or simulated ones, with this host if requested."""
    shapes = simulated.parse(simulate) if simulate else []
    found = [AgentNode(name, state)] if with_host or not shapes else []
    if len(shapes) == 1 and not found:
        return [AgentNode(name, state, shapes[0])]
    count: dict[str, int] = {}
    for shape in shapes:
        short = simulated.SHAPES[shape].short
        count[short] = count.get(short, 0) + 1
        own = f"{name}-{short}-{count[short]}"
        found.append(AgentNode(own, state / "nodes" / own, shape))
    return found


def runtime_source(module: str) -> Path | None:
    """Return the path of a module that stages get: beside this package, else on Python's path, else None."""
    sibling = Path(__file__).resolve().parent.parent / "switchyard" / f"{module}.py"
    if sibling.is_file():
        return sibling
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(f"switchyard.{module}")
        if spec is not None and spec.origin:
            return Path(spec.origin)
    return None


def install_runtime(state: Path) -> Path | None:
    """Copy the in-job modules, one file each, to where jobs find them; return the folder for PYTHONPATH."""
    sources = {name: source for name in GIVEN if (source := runtime_source(name)) is not None}
    if "runtime" not in sources:
        return None
    package = state / "runtime" / "switchyard"
    package.mkdir(mode=0o755, parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""What a stage may import of Switchyard: the runtime."""\n')
    for name, source in sources.items():
        draft = package / f"{name}.py.draft"
        shutil.copyfile(source, draft)
        draft.rename(package / f"{name}.py")
    for path in (package.parent, package):
        path.chmod(0o755)
    for path in package.iterdir():
        path.chmod(0o644)
    return package.parent


def lock(state: Path) -> int:
    """Lock the state folder while this process runs. Raises ValueError if another agent has locked it."""
    descriptor = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise ValueError(f'state folder "{state}" is in use by the agent with pid {other}; give each its own') from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def join(member: AgentNode, server: Server, token: Callable[[], str]) -> Enrolled:
    known = enrol.remembered(member.state)
    return known if known is not None else enrol.enrol(member.state, server, member.name, token())


def listen(bell: Path, ring: Callable[[str], None]) -> None:
    """Call ``ring`` with a part's name whenever its shim notifies the agent."""
    with contextlib.suppress(FileNotFoundError):
        bell.unlink()
    os.mkfifo(bell, 0o600)
    # Open for writing too: a pipe without writers would read as ended for ever.
    pipe = os.open(bell, os.O_RDWR | os.O_NONBLOCK)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for name in dict.fromkeys(os.read(pipe, 65536).decode(errors="replace").split("\n")):
                if name:
                    ring(name)

    asyncio.get_running_loop().add_reader(pipe, read)


async def serve(
    member: AgentNode,
    server: Server,
    credentials: enrol.Credentials,
    options: argparse.Namespace,
    fork_client: ForkClient,
) -> tuple[NodeTasks, Meter]:
    """Start one node and its loops; return the node, and what measures it."""
    state = member.state
    runs = state / "parts"
    runs.mkdir(mode=0o711, exist_ok=True)
    users = options.users
    whose = users.default
    for each in (whose, *users.accounts.values(), *([RunAs("", users.uids[1], users.uids[1])] if users.uids else [])):
        each.check(runs)
    groups = cgroup.bases()
    boot = procfs.boot_id()
    ground = Ground(
        boot_id=boot,
        bell=state / "bell",
        lease=state / "lease",
        fork_client=fork_client,
        bundles=BundleCache(state / "bundles", server),
        run_as=whose,
        runtime=install_runtime(state),
        cgroups=groups,
        files=DriverFiles(lambda uuid: view.address_of(uuid)),
        has_views=not options.no_view,
        log_cap_bytes=setting("YARD_AGENT_LOG_CAP_BYTES", LOG_CAP_BYTES),
        log_pace_bytes=setting("YARD_AGENT_LOG_BYTES_PER_S", LOG_BYTES_PER_S),
        processes=setting("YARD_AGENT_PROCESSES", most_processes()),
    )
    # Only root may divide a card.
    instances = Instances(state / "instances.json") if os.geteuid() == 0 and not member.shape else None
    foreign = None
    if options.delegation is not None:
        foreign = delegated(options.delegation, ground, member.name, credentials.enrolled.node)
    found: dict[str, vendors.Probe] = {"foreign": foreign.capacity} if foreign else probes(member, options, instances)
    view = HostView(
        name=member.name,
        probes=found,
        isolation=level(users, has_views=not options.no_view, has_limits=cgroup.limits(groups)),
        runs_as=users.spoken,
        address=address_towards(server.url),
        labels=dict(options.labels),
        mounts=[] if member.shape is not None else options.mount,
        simulated=member.shape is not None,
        engine=None if member.shape is not None or foreign else EngineWatch.of_this_process(),
        executor=foreign.engine.title if foreign else "",
        lacks=foreign.engine.lacks if foreign else (),
    )
    view.work_folder = runs
    await asyncio.to_thread(view.look)
    executor = Choice(
        {"": foreign, "container": foreign}
        if foreign
        else {"": ProcessExecutor(ground), "container": ContainerExecutor(ground)}
    )
    node = NodeTasks(member.name, runs, Journal(state / "journal.jsonl"), executor, boot)
    node.local = prepare_folder(state / "local")
    node.rights = whose.rights()
    node.users = users
    node.allowed = Allowed(options.storage_below, str(node.local))
    node.mounts = MountRoots(options.mount, str(state), users)
    node.staging = open_staging(state, server, options, whose.rights(), node.changed.set)
    node.tuner.topology = lambda: known_cores(view.inventory)
    node.lacks = lambda spec: missing(spec, view.inventory)
    node.instances = instances
    if options.health_checks or options.hooks:
        every_s = setting("YARD_AGENT_HEALTH_S", EVERY_S)
        node.health = HealthChecks(options.health_checks, options.hooks, node.changed.set, max(1, every_s))
    node.tuner.turns = Turns(options.queued)
    listen(ground.bell, node.look)
    node.open()
    if foreign is not None:
        node.troubles, node.is_far = foreign.troubles, True
        foreign.begin()
    lease = Renewal(ground.lease, boot)
    node.lease_until = lease.until
    link = ServerConnection(node, view, server, lease, credentials)
    logs = LogShipper(node, server)
    meter = Meter(node, view, link, server)
    meter.is_link_weak = options.weak_link
    if options.weak_link:
        logs.period_s = WEAK_PERIOD_S
    control = await open_edge(member, options, node, view, link, logs) if options.edge_allowances is not None else None
    node.keep("look at its parts", node.tick)
    node.keep("link to the control plane", link.run)
    node.keep("look for listening ports", partial(watch_ports, node))
    node.keep("shipping of logs", logs.run)
    node.keep("telemetry", meter.run)
    node.keep("look at disk space", meter.watch_disks)
    if node.health is not None:
        node.keep("health checks", node.health.run)
    node.keep("fetching of inputs", node.staging.run)
    limits, images = CacheLimits.of_host(state), partial(images_in_use, runs)
    collector = Collector(ground.bundles.folder, node.staging.store, limits, images)
    node.keep("collection of what nobody used for long", collector.run)
    node.keep("care for folders of jobs", partial(expire_for_ever, node.local))
    node.on_close = partial(close, view, node.staging, instances, foreign, control)
    return node, meter


async def open_edge(
    member: AgentNode,
    options: argparse.Namespace,
    node: NodeTasks,
    view: HostView,
    link: ServerConnection,
    logs: LogShipper,
) -> ControlSocket:
    """Accept jobs on this node itself, from the accounts that its operator names."""

    def unusable() -> set[str]:
        found = [*view.conditions(node.journal.disk_pressure).device_errors, *node.quarantined()]
        return {error.uuid for error in found}

    ledger = await asyncio.to_thread(LocalLedger, member.state / "edge")
    devices = lambda: view.inventory.devices if view.inventory is not None else []  # noqa: E731
    jobs = LocalJobs(
        node, options.edge_allowances, ledger, devices, unusable, as_accounts=options.users.default.uid is not None
    )
    link.local, jobs.on_joined = jobs, logs.renew
    control = ControlSocket(jobs, Path(options.edge_allowances.socket or member.state / "edge.sock"))
    await control.open()
    node.keep("jobs submitted on this node", jobs.run)
    return control


def probes(member: AgentNode, options: argparse.Namespace, instances: Instances | None) -> dict[str, vendors.Probe]:
    """Return what finds the devices of a node's machine."""
    if member.shape:
        return {"simulated": simulated.SimulatedProbe(member.name, member.shape)}
    return vendors.discover(vendors.ProbedHost(name=member.name, commands=options.commands, instances=instances))


def close(
    view: HostView,
    staging: Staging,
    instances: Instances | None,
    foreign: DelegatedExecutor | None,
    control: ControlSocket | None,
) -> None:
    if control is not None:
        control.close()
    if foreign is not None:
        foreign.close()
    view.close()
    staging.close()
    if instances is not None:
        instances.close()


def most_processes() -> int:
    """Return how many processes and threads a task, and all tasks of one user, may have; never all of the host's."""
    told = digits((content("/proc/sys/kernel/pid_max") or b"").strip())
    return PROCESSES if told is None else min(PROCESSES, told // 4)


def refuse(folder: str, reason: str) -> None:
    """Record that a part's shim could not be forked, so that the next look at the part finds it ended."""
    if take(folder):
        end = Exit(cause="LAUNCH_FAILED", **told(clause("HostFull", error=reason)))
        write_whole(f"{folder}/exit.json", msgspec.to_builtins(end))


def prefer_survival() -> None:
    """Make the kernel spare the agent when the host runs out of memory; only root may do that."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def status(nodes: list[NodeTasks]) -> str:
    """Return one line on the state of the agent: its nodes, what runs on them, and recent failures."""
    notes = [note for node in nodes for note in node.loops.notes()]
    return "; ".join([f"{len(nodes)} node(s), {sum(len(node.live) for node in nodes)} part(s) live", *notes])


async def run(options: argparse.Namespace, state: Path) -> None:
    """Run every node of this process until told to end."""
    # Before anything is started, because nothing may inherit the variables of systemd.
    systemd = Systemd()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    cached: list[str] = []

    def token() -> str:
        if not cached:
            if options.join_token_file is None:
                raise ValueError("this node has not joined yet; give --join-token-file with a token of the nodes page")
            cached.append(enrol.read_token(options.join_token_file))
        return cached[0]

    stranger = Server(options.url, plain_http=options.plain_http)
    if stranger.is_readable_on_the_way:
        log.warning("%s is plain HTTP: whoever is on the way can read and change what is sent", options.url)
    options.users.default.take_groups()
    fork_client = ForkClient(state / "shim.log")
    fork_client.on_refusal = refuse
    fork_client.start()
    nodes: list[NodeTasks] = []
    meters: list[Meter] = []
    page = MetricsServer(lambda: metrics.told(meter.seen() for meter in meters))
    try:
        if options.metrics is not None:
            await page.open(*options.metrics)
        for member in members(options.name, state, options.simulate, options.with_host):
            member.state.mkdir(mode=0o711, parents=True, exist_ok=True)
            enrolled = await asyncio.to_thread(join, member, stranger, token)
            credentials = enrol.Credentials(member.state, enrolled)
            server = replace(stranger, identity=credentials.identity)
            node, meter = await serve(member, server, credentials, options, fork_client)
            nodes.append(node)
            meters.append(meter)
        log.info("%d node(s) up, version %s", len(nodes), VERSION)
        told_of = asyncio.create_task(systemd.run(lambda: status(nodes)))
        await stopping.wait()
        told_of.cancel()
        systemd.tell("STOPPING=1")
        log.info("the agent ends; what it started goes on")
    finally:
        await page.close()
        for node in nodes:
            await node.close()
        fork_client.close()


def mount_root(text: str) -> str:
    if not text.startswith("/") or text == "/" or ".." in text.split("/") or Allowed().refuses(text):
        raise argparse.ArgumentTypeError(f'"{text}" is no folder that stages may mount; name one such as /data')
    return text.rstrip("/")


def chosen_delegation(options: argparse.Namespace) -> Delegation | None:
    """Return what the file of --delegate says. Raises ValueError for other options that it excludes."""
    if options.delegate is None:
        return None
    if options.simulate or options.probes or options.queued or options.mount or options.hooks or options.edge:
        raise ValueError(
            "--delegate excludes --simulate, --probes, --queued, --mount, --hooks and --edge: nothing runs here"
        )
    if options.uid_range or options.account or (os.geteuid() == 0 and not options.run_as):
        raise ValueError("with --delegate all stages run as the user of the agent: start it as one, or say --run-as")
    return read_delegation(options.delegate)


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f'"{text}" is no label; write it as name=value')
    return name, value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m agents", description="Run this host's stages for a control plane.")
    top.add_argument("--url", required=True, help="address of the control plane; https:// unless it is on this host")
    top.add_argument(
        "--plain-http",
        action="store_true",
        help="accept an http:// address on another host; only on a private network, for nothing is encrypted then",
    )
    top.add_argument("--state", required=True, help="folder that keeps identity, journal and run folders")
    top.add_argument("--name", default=os.uname().nodename, help="name of the node (default: the host's)")
    top.add_argument("--join-token-file", help="file with a join token, or - for standard input; needed once")
    top.add_argument(
        "--run-as",
        help="self, nobody, a user or a uid, for all stages; default: a user per project for root (see --uid-range), "
        "else self. As root say root, not self",
    )
    top.add_argument(
        "--uid-range",
        metavar="FIRST-LAST",
        help=f"uids of which each project gets one, the same on all nodes (default for root: {USUAL[0]}-{USUAL[-1]})",
    )
    top.add_argument(
        "--account",
        metavar="PROJECT=USER",
        action="append",
        default=[],
        help="an account of this host for the stages of a project; may be repeated",
    )
    top.add_argument("--probes", metavar="FILE", help="commands that list devices of any kind (default: $YARD_PROBES)")
    top.add_argument("--simulate", help="simulated machines instead of this one, e.g. 4xdgx-h100,2xatlas-800")
    top.add_argument(
        "--delegate",
        metavar="FILE",
        type=Path,
        help="be a foreign cluster instead of this host, whose engine gets each part as a job; see "
        "docs/how-to/slurm-delegated.md",
    )
    top.add_argument("--with-host", action="store_true", help="be this host too, beside the simulated machines")
    top.add_argument("--labels", type=label, action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    top.add_argument(
        "--queued",
        action="append",
        default=[],
        metavar="KIND|UUID",
        help="devices whose parts take turns by a feedback queue; may be repeated",
    )
    top.add_argument(
        "--storage-below",
        metavar="FOLDER",
        type=lambda text: str(Path(text).resolve()),
        action="append",
        default=[],
        help="folders that pools may name as storage on this host; may be repeated (default: all but the system's)",
    )
    top.add_argument(
        "--mount",
        metavar="FOLDER",
        type=mount_root,
        action="append",
        default=[],
        help="a folder of this host of which stages may mount what is in it; may be repeated (default: none)",
    )
    top.add_argument(
        "--health-checks",
        metavar="FOLDER",
        type=lambda text: Path(text).resolve(),
        help="programs of which each must exit 0, or this node gets no new stages; see docs/how-to/health-checks.md",
    )
    top.add_argument(
        "--hooks",
        metavar="FOLDER",
        type=lambda text: Path(text).resolve(),
        help="has prolog and epilog, which are run around each stage, or POOL/prolog and POOL/epilog for one pool",
    )
    top.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT",
        type=endpoint,
        help="tell Prometheus of the devices at http://ADDRESS:PORT/metrics, and whoever else reaches it (default: no)",
    )
    top.add_argument(
        "--edge",
        metavar="FILE",
        type=Path,
        help="accept jobs on this node itself while it is cut off, from the accounts that this file names; see "
        "docs/how-to/edge.md (default: from nobody)",
    )
    top.add_argument(
        "--weak-link",
        action="store_true",
        help="send measurements every half minute and logs every five seconds, for an uplink that is slow or dear",
    )
    add_arguments(top)
    top.add_argument("--verbose", action="store_true", help="log more")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run. Exit codes: 0 ended as requested, 1 could not start, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else arguments
    asides = {"stop-all": stop_all.main, "survey": survey.main, "bandwidth": bandwidth.main}
    if words and words[0] in asides:
        return asides[words[0]](words[1:])
    options = parser().parse_args(words)
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("websockets").setLevel(logging.WARNING)
    prefer_survival()
    state = Path(options.state).expanduser().resolve()
    try:
        listed = options.probes or os.environ.get("YARD_PROBES", "")
        options.users = chosen(options.run_as, options.uid_range, options.account)
        for folder in filter(None, (options.health_checks, options.hooks)):
            listed_programs(folder)
        # Tried in a child of its own, which this process must have before it has threads.
        options.no_view = why_not()
        if options.no_view and os.geteuid() == 0:
            log.warning("stages see each other's processes and all devices: %s", options.no_view)
        options.delegation = chosen_delegation(options)
        options.edge_allowances = read_allowances(options.edge) if options.edge is not None else None
        if options.edge_allowances is not None and len(members(options.name, state, options.simulate, False)) > 1:
            raise ValueError("--edge is for an agent that is one node")
        options.commands = command.read_commands(Path(listed)) if listed else ()
        state.mkdir(mode=0o711, parents=True, exist_ok=True)
        lock(state)
        asyncio.run(run(options, state))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
