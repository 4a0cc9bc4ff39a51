"""The commands of the stack's own parts: web server, gateway, worker and agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deploy.local import identity
from deploy.local.home import Home, write_private
from deploy.local.service import ROOT, Service, User, python

Environment = Mapping[str, str]

SIMULATED = "sim"  # prefix of the names of simulated nodes
# Serving people has lower priority than agents and the scheduler.
GIVES_WAY = 5
# Threads of the worker: as many simulations as run at once (``SIMULATIONS_AT_ONCE``), and for everything else.
WORKER_THREADS = 4 + 6


def web(home: Home, port: int, user: User, environment: Environment) -> Service:
    """The web server: REST, pages, and the sockets of browsers; on loopback only."""
    return _server("web", "controlplane.asgi", port, home, user, environment, nice=GIVES_WAY)


def gateway(home: Home, port: int, user: User, environment: Environment) -> Service:
    """The gateway for agents; on loopback only."""
    return _server("gateway", "controlplane.gateway.asgi", port, home, user, environment)


def router(home: Home, port: int, user: User, environment: Environment) -> Service:
    """The router of inference services; on loopback only. It needs few of the keeper's imports, so it has its own."""
    command = python("-m", "router", "--port", str(port))
    return Service("router", command, environment, home.logs / "router.log", user=user)


def _server(
    name: str, module: str, port: int, home: Home, user: User, environment: Environment, nice: int = 0
) -> Service:
    options = {
        "host": "127.0.0.1",
        "port": str(port),
        "http": "controlplane.request_head:BoundedHead",
        "ws": "websockets-sansio",
        "ws-per-message-deflate": "false",
        "lifespan": "off",
        "log-level": "warning",
        "timeout-graceful-shutdown": "3",
    }
    command = ["uvicorn", f"{module}:application", "--app-dir", str(ROOT), "--no-access-log"]
    for option, value in options.items():
        command += [f"--{option}", value]
    own = {**environment, "YARD_DB_POOL": "8"}
    return Service(name, command, own, home.logs / f"{name}.log", user=user, nice=nice, is_forked=True)


def worker(home: Home, user: User, environment: Environment) -> Service:
    """The one process that runs all tasks, including the beat."""
    command = [
        *("controlplane.workers", "--beat-thread", "--schedule", str(home.run / "beat")),
        *("--pool", "threads", "--concurrency", str(WORKER_THREADS)),
        *("--queues", "scheduling,fleet,questions,simulations,maintenance"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"),
    ]
    # A connection for each thread, and for the leader, the beat and the presence.
    own = {**environment, "YARD_DB_POOL": str(WORKER_THREADS + 3)}
    return Service("worker", command, own, home.logs / "worker.log", user=user, is_forked=True)


def agent(home: Home, url: str, name: str, token: str, run_as: str, environment: Environment) -> Service:
    """This machine's own agent. It keeps its credential, so the join token only matters the first time."""
    return _agent("agent", home.agents / "local", url, name, token, run_as, [], home, environment)


def simulating_agent(home: Home, url: str, nodes: str, token: str, run_as: str, environment: Environment) -> Service:
    """One agent process that hosts all nodes with simulated devices."""
    more = ["--simulate", nodes]
    return _agent("agent-simulated", home.agents / "simulated", url, SIMULATED, token, run_as, more, home, environment)


def _agent(
    service: str,
    state: Path,
    url: str,
    name: str,
    token: str,
    run_as: str,
    more: list[str],
    home: Home,
    environment: Environment,
) -> Service:
    state.mkdir(mode=0o711 if run_as in ("projects", "nobody") else 0o700, exist_ok=True)
    uids = identity.uids(home)
    whose = ["--uid-range", f"{uids[0]}-{uids[-1]}"] if run_as == "projects" else ["--run-as", run_as]
    token_file = state / "join.token"
    write_private(token_file, token + "\n")
    command = [
        *python("-m", "agents", "--url", url, "--state", str(state), "--name", name),
        *("--join-token-file", str(token_file), *whose, *more),
    ]
    return Service(service, command, environment, home.logs / f"{service}.log")
