"""The keeper: one process, one thread, that owns all parts of a local stack and talks to its launcher by pipes.

It starts the parts in order, restarts those that die, and takes everything down on request: a closed standard input
(the launcher ended in whatever way), SIGTERM or SIGINT. Each part runs under the leash (:mod:`deploy.local.leash`), so
that even ``kill -9`` of the keeper leaves none behind. One thread only, because the leash is tied to the thread that
starts a part.

Events are printed on standard output, one JSON object per line: ``{"event": "step"

"say"

"up"

..., ...}``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local import forked, identity, parts
from deploy.local.home import Home, HomeUnusable, write_private
from deploy.local.identity import Exposed
from deploy.local.lock import AlreadyRunning, Lock, Running
from deploy.local.options import Options
from deploy.local.port import NoPort, answers, free_port, listens, ready_nodes
from deploy.local.postgres import Cluster, PostgresUnavailable
from deploy.local.service import ROOT, Service, importing, leashed, open_log, python, stop_all
from deploy.local.stages import stop_stages
from deploy.local.valkey import Broker, ValkeyUnavailable
from deploy.local.waiter import Stop, Waiter

FIRST_BACKOFF_S = 0.5
# With the start of the slowest part this stays below ten seconds, however often it was killed.
LAST_BACKOFF_S = 5.0
# Bounds what hangs, not how fast a busy machine is: who ends before is seen to.
PATIENCE_S = 180.0
NODE_PATIENCE_S = 30.0
NODE_PATIENCE_EACH_S = 1.0
AGENT_STARTS = 3  # an agent without its nodes by then will not succeed later
STEADY_AFTER_S = 10.0  # a part that lived this long starts again at once when it dies

EXIT_ALREADY_RUNNING = 3


def pauses(lived_s: float, backoff_s: float) -> tuple[float, float]:
    """Return the pause before a part that lived for ``lived_s`` starts again, and the next pause if it dies as soon.
    ``backoff_s`` is the second value of the previous call."""
    if lived_s > STEADY_AFTER_S:
        return 0.0, FIRST_BACKOFF_S
    return backoff_s, min(backoff_s * 2, LAST_BACKOFF_S)


class CannotStart(Exception):
    """A part did not come up; the message is for the person."""


@dataclass
class Keeper:
    """The stack of one state folder."""

    home: Home
    options: Options
    services: list[Service] = field(default_factory=list)
    again_at: dict[str, float] = field(default_factory=dict)  # when a dead service is started again
    backoff_s: dict[str, float] = field(default_factory=dict)

    def run(self) -> int:
        """Bring the stack up, keep it, take it down; return the exit status."""
        self.waiter = Waiter()
        try:
            self.home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Lock(self.home):
                try:
                    self.bring_up()
                    while True:
                        self.waiter.wait(self.restart_dead())
                except Stop:
                    return 0
                finally:
                    self.take_down()
        except AlreadyRunning:
            self.say("already")
            return EXIT_ALREADY_RUNNING
        except (CannotStart, Exposed, HomeUnusable, NoPort, PostgresUnavailable, ValkeyUnavailable, OSError) as error:
            self.say("trouble", text=str(error))
        return 1

    def wait_until(self, ready: Callable[[], bool], service: Service, patience_s: float) -> None:
        """Wait for ``service`` to be ready; raises :class:`CannotStart` with its last log lines if it ends instead."""
        deadline = time.monotonic() + patience_s
        while not ready():
            status = service.ended()
            if status is not None or time.monotonic() > deadline:
                what = f"ended with status {status}" if status is not None else f"is not ready after {patience_s:.0f} s"
                raise CannotStart(f"{service.name} {what}; {service.log} ends with:\n{service.last_lines()}")
            self.waiter.wait(0.03)

    def say(self, event: str, **facts: Any) -> None:
        """Send an event to the launcher; the end of the launcher is noticed by :meth:`wait`."""
        try:
            os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())
        except OSError:
            pass

    # -- up -------------------------------------------------------------------------------------------------------

    def bring_up(self) -> None:
        """Start everything in order; returns when the dashboard answers."""
        began_at = time.monotonic()
        self.home.open()
        people = self.people = identity.choose(self.home, self.options.stages_as_root)
        if people.note:
            self.say("say", text=people.note)
        if self.options.fresh:
            self.clear()
        self.home.prepare(people.parts)
        identity.admit(self.home, people)
        port = free_port(self.options.port)
        if port != self.options.port:
            self.say("say", text=f"port {self.options.port} is taken; the dashboard is on port {port}")
        gateway_port = free_port(port + 1)
        router_port = free_port(gateway_port + 1)
        self.url, self.agents_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway_port}"
        self.router_url = f"http://127.0.0.1:{router_port}"
        self.start_stores()
        if self.options.restore:
            self.restore(self.options.restore)
        Running(os.getpid(), self.url, self.added_environment).write(self.home)
        forked.load()
        # The web server takes as long to load as the tables take to create, and gets no requests yet.
        web = self.start(parts.web(self.home, port, people.user, self.parts_environment))
        first = self.make_records()
        write_private(self.home.client_file, f'url = "{self.url}"\ntoken = "{first["api_token"]}"\n')
        gateway = self.start(parts.gateway(self.home, gateway_port, people.user, self.parts_environment))
        self.start(parts.router(self.home, router_port, people.user, self.parts_environment))
        self.start(parts.worker(self.home, people.user, self.parts_environment))
        with self.step("dashboard"):
            self.wait_until(lambda: answers(port), web, PATIENCE_S)
            # On a busy machine it takes longer to load than an agent retries.
            self.wait_until(lambda: listens(gateway_port), gateway, PATIENCE_S)
        with self.step("node"):
            agents = self.start_agents(first)
            missing = self.wait_for_nodes(port, first["api_token"], agents)
        self.say(
            "up",
            url=self.url,
            sign_in=self.url + first["sign_in_path"],
            token=first["api_token"],
            missing=missing,
            took_s=round(time.monotonic() - began_at, 2),
        )

    def clear(self) -> None:
        """Empty the state folder; running stages of an earlier stack are stopped first."""
        if "DATABASE_URL" in os.environ:
            raise CannotStart(
                "--fresh empties the embedded database only, and DATABASE_URL names another one: "
                "unset it, or start without --fresh"
            )
        self.stop_stages()
        self.home.clear()

    def start_stores(self) -> None:
        """Start PostgreSQL and Valkey, or use those that DATABASE_URL and REDIS_URL name."""
        self.added_environment = {
            "YARD_HOME": str(self.home.path),
            "YARD_SECRET_KEY_FILE": str(self.home.secret_key_file),
            "YARD_SECRETS_KEY_FILE": str(self.home.secrets_keys_file),
            "YARD_URL": self.url,
            "YARD_AGENTS_URL": self.agents_url,
            "YARD_ROUTER_URL": self.router_url,
            "YARD_ROUTER_KEY_FILE": str(self.home.router_key_file),
            "YARD_ALLOWED_HOSTS": "127.0.0.1,localhost",
            "YARD_SIGN_IN_COMMAND": "./script/sign-in",
            "YARD_BLOBS": str(self.home.blobs),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
        redis = self.start_redis()
        with self.step("database"):
            self.added_environment["DATABASE_URL"] = os.environ.get("DATABASE_URL") or self.start_postgres()
        if redis is not None:
            broker, service = redis
            self.wait_until(broker.is_ready, service, PATIENCE_S)

    def start_redis(self) -> tuple[Broker, Service] | None:
        """Start Valkey without waiting for it."""
        if url := os.environ.get("REDIS_URL"):
            self.added_environment["REDIS_URL"] = url
            return None
        broker, people = Broker(self.home.valkey, self.home.sockets, self.home.secrets), self.people
        self.added_environment |= broker.environment
        log = self.home.logs / "valkey.log"
        return broker, self.start(broker.service(self.environment, log, people.user, people.parts))

    def start_postgres(self) -> str:
        """Create the cluster on the first start, start its server, and return its URL."""
        cluster = Cluster(self.home.postgres, self.home.sockets, self.home.secrets)
        user = cluster.user if self.people.parts is None else self.people.user
        if cluster.exists:
            cluster.clear_stale_lock()
            cluster.adopt(user, self.environment)
        else:
            making = cluster.begin_making(self.environment, user)
            forked.load()  # while initdb runs
            cluster.finish_making(*self.waiter.wait_for(making))
        server = self.start(cluster.service(user, self.environment, self.home.logs / "postgres.log"))
        # Recovery after a crash replays at most max_wal_size.
        self.wait_until(cluster.is_ready, server, 120)
        return cluster.url

    def start_agents(self, first: dict[str, str]) -> dict[str, list[str]]:
        """Start this machine's own agent and, if requested, one that hosts nodes with simulated devices.

        Returns the names of the nodes of each.
        """
        environment, run_as, name = self.environment, self.people.stages, socket.gethostname()
        own = self.start(parts.agent(self.home, self.agents_url, name, first["join_token"], run_as, environment))
        agents = {own.name: [name]}
        if nodes := self.options.simulate:
            token = first["simulated_join_token"]
            other = self.start(parts.simulating_agent(self.home, self.agents_url, nodes, token, run_as, environment))
            agents[other.name] = simulated_nodes(nodes)
        return agents

    def wait_for_nodes(self, port: int, token: str, agents: dict[str, list[str]]) -> list[str]:
        """Wait until all nodes accept work; return those that do not after the time limit.

        Raises :class:`CannotStart` if an agent ends again and again without its nodes.
        """
        wanted = {name for names in agents.values() for name in names}
        deadline = time.monotonic() + NODE_PATIENCE_S + NODE_PATIENCE_EACH_S * len(wanted)
        while missing := wanted - ready_nodes(port, token):
            for service in self.services:
                if service.starts > AGENT_STARTS and missing & set(agents.get(service.name, ())):
                    said = service.last_lines(1)
                    raise CannotStart(
                        f"{service.name} ends again and again; the last line of {service.log} is:\n{said}"
                    )
            if time.monotonic() > deadline:
                break
            self.waiter.wait(min(0.2, self.restart_dead() or 0.2))
        return [f"{name} ({agent})" for agent, names in agents.items() for name in names if name in missing]

    # -- details of up -----------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        return importing({**os.environ, **self.added_environment})

    @property
    def parts_environment(self) -> dict[str, str]:
        """Return the environment of the parts; another user than the caller keeps compiled modules in a folder of its
        own.

        It does so also where the caller says that compiled modules are not kept: with that folder Python reads none
        that lie elsewhere, and each part would compile all its libraries at each start.
        """
        if self.people.parts is None:
            return self.environment
        own = str(self.home.run)
        environment = {**self.environment, "HOME": own, "PYTHONPYCACHEPREFIX": f"{own}/pycache"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment

    def start(self, service: Service) -> Service:
        self.services.append(service)
        service.start()
        return service

    def step(self, name: str) -> Step:
        return Step(self, name)

    def restore(self, folder: str) -> None:
        """Restore a backup into the stores, before parts start. Raises :class:`CannotStart`."""
        with self.step("restore"):
            # As the caller, who owns the backup; the parts' user may not read it, and owns the restored files.
            process = subprocess.Popen(
                leashed(python(str(ROOT / "manage.py"), "restore", "--yes", folder), user="self"),
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            status, output = self.waiter.wait_for(process)
            if status != 0:
                raise CannotStart(f"{folder} cannot be restored: {output.strip()[-2000:]}")
        for line in output.splitlines():
            self.say("say", text=line)

    def make_records(self) -> dict[str, str]:
        """Create or migrate the tables; return the first secrets. Raises :class:`CannotStart` on failure."""
        with self.step("tables"):
            path = self.home.logs / "prepare.log"
            # Each may have to join twice, if the first answer was lost.
            nodes = ("--nodes", str(2 * max(1, len(simulated_nodes(self.options.simulate)))))
            log = open_log(path)
            try:
                process = subprocess.Popen(
                    leashed(
                        python("-m", "deploy.prepare", str(self.home.shared), "--static", *nodes), user=self.people.user
                    ),
                    env=self.parts_environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    process_group=0,
                )
            finally:
                os.close(log)
            status, output = self.waiter.wait_for(process)
            if status != 0:
                said = "\n".join(path.read_text(errors="replace").splitlines()[-12:])
                raise CannotStart(f"the tables cannot be made (status {status}); {path} ends with:\n{said}")
            first: dict[str, str] = json.loads(output)
            return first

    def restart_dead(self) -> float | None:
        """Start each dead service that is due; return seconds until the next one is due, None without any."""
        now = time.monotonic()
        for service in self.services:
            status = service.ended()
            if status is None:
                continue
            if service.name not in self.again_at:
                before_s = self.backoff_s.get(service.name, FIRST_BACKOFF_S)
                delay_s, self.backoff_s[service.name] = pauses(now - service.started_at, before_s)
                self.again_at[service.name] = now + delay_s
                self.say("restart", name=service.name, status=status, delay_s=delay_s, log=str(service.log))
            if self.again_at[service.name] <= now:
                del self.again_at[service.name]
                service.start()
        return max(0.0, min(self.again_at.values()) - now) if self.again_at else None

    # -- down -----------------------------------------------------------------------------------------------------

    def take_down(self) -> None:
        """Stop everything: agents and their stages first, then servers and worker, then stores."""
        # From here on a request to stop changes nothing: each step has its own deadline.
        self.waiter.close()
        named = {service.name: service for service in self.services}
        agents = [service for name, service in named.items() if name.startswith("agent")]
        stores = [named[name] for name in ("valkey", "postgres") if name in named]
        rest = [service for service in self.services if service not in agents and service not in stores]
        killed = stop_all(agents, 10)
        if agents:
            self.stop_stages()
        killed += stop_all(rest, 8)
        killed += stop_all(stores, 15)
        (self.home.path / "stack.json").unlink(missing_ok=True)
        self.say("down", killed=killed)

    def stop_stages(self) -> None:
        """Stop the stages of the agents; report failures."""
        for state in stop_stages(self.home):
            self.say("say", text=f"not all stages of {state} could be stopped; see {self.home.logs / 'agent-stop.log'}")


@dataclass
class Step:
    """A named step of the start; the launcher is told its begin and duration."""

    keeper: Keeper
    name: str
    began_at: float = 0.0

    def __enter__(self) -> None:
        self.began_at = time.monotonic()
        self.keeper.say("step", name=self.name)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.keeper.say("step", name=self.name, took_s=round(time.monotonic() - self.began_at, 2))


def simulated_nodes(asked: str) -> list[str]:
    """Return the names of the nodes of the simulating agent for ``--simulate``."""
    from agents.main import members

    return [each.name for each in members(parts.SIMULATED, Path(), asked, False)] if asked else []


def main(options: Sequence[str]) -> int:
    """Run the keeper; the launcher passes its options as one JSON object."""
    (text,) = options
    return Keeper(Home.from_environment(), Options(**json.loads(text))).run()
