"""Accepts simulations, starts a process for each, stops them, and notices when one is gone."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.files.storage import storages
from django.db import connection, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from kombu.exceptions import OperationalError

from controlplane import changes, storage
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.accounts.permissions import visible_jobs
from controlplane.advisory_lock import LockKey
from controlplane.background import BackgroundPhase
from controlplane.clauses import Told, clause, told, verbatim
from controlplane.pools.models import Pool
from controlplane.pools.profiles import spec_of
from controlplane.simulations import history
from controlplane.simulations.models import OPEN, Simulation
from controlplane.simulations.pool_shape import nodes_of
from scheduler.profiles import PROFILES
from scheduler.scenario.scenario import ScenarioError, ScenarioLimits, build

log = logging.getLogger(__name__)

LIMITS = ScenarioLimits(arrivals=20_000, lines=50_000, devices=20_000, cells=24)
LONGEST_S = 900.0
NO_FAULT = Told()
GONE_S = 60.0
_processes: set[subprocess.Popen[bytes]] = set()


class TooManySimulations(Exception):
    """Raised where as many simulations run as this installation, or this person, may let run at once."""


def check_room(user: User) -> None:
    """Raises :class:`TooManySimulations` where this user, or everybody together, runs as many as may run at once."""
    running = Simulation.objects.filter(phase__in=OPEN)
    if running.filter(user=user).count() >= settings.SIMULATIONS_PER_USER:
        raise TooManySimulations(
            ngettext(
                "{n} simulation of yours runs already; wait for it, or cancel it",
                "{n} simulations of yours run already; wait for one, or cancel one",
                settings.SIMULATIONS_PER_USER,
            ).format(n=settings.SIMULATIONS_PER_USER)
        )
    if running.count() >= settings.SIMULATIONS_AT_ONCE:
        raise TooManySimulations(
            ngettext(
                "{n} simulation runs already, as many as may at once; wait for it",
                "{n} simulations run already, as many as may at once; wait for one",
                settings.SIMULATIONS_AT_ONCE,
            ).format(n=settings.SIMULATIONS_AT_ONCE)
        )


def forget_beyond(user: User) -> None:
    """Removes this user's oldest ended simulations beyond the number and the bytes that are kept."""
    ended = Simulation.objects.filter(user=user).exclude(phase__in=OPEN)
    kept_bytes, old = 0, []
    for number, (pk, size) in enumerate(ended.values_list("pk", F("trace_bytes") + F("result_bytes"))):
        kept_bytes += size
        if number >= settings.SIMULATIONS_KEPT or kept_bytes > settings.SIMULATION_BYTES_PER_USER:
            old.append(pk)
    Simulation.objects.filter(pk__in=old).delete()


def sweep(shard: int) -> int:
    """Removes what was kept for rows that never came, of one 256th of all names; how many went."""
    place, folder = storages["simulations"], f"{shard % 256:02x}"
    try:
        names = [f"{folder}/{name}" for name in place.listdir(folder)[1]]
    except FileNotFoundError:
        return 0
    rows = Simulation.objects.filter(Q(trace__in=names) | Q(result__in=names))
    known = {name for pair in rows.values_list("trace", "result") for name in pair}
    before = timezone.now() - timedelta(hours=1)
    gone = [name for name in names if name not in known and place.get_modified_time(name) < before]
    storage.forget("simulations", *gone)
    return len(gone)


def _try_lock(number: int) -> bool:
    """Takes the lock of this number until the transaction ends; False where another has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [LockKey.SIMULATIONS, number])
        (taken,) = cursor.fetchone()
    return bool(taken)


@transaction.atomic
def submit(body: dict[str, Any], user: User) -> Simulation:
    """Accepts a scenario and starts its process once the row is there.

    ``trace.history`` (``{"days": 7}``, of one ``pool`` where that is named) stands for the finished stages that the
    user may see, ``trace.queue`` for those that run and wait now, ``world.pool`` for the nodes of a pool, and the name
    of an own profile for the version that is active now. Raises ``ScenarioError`` for what
    cannot be and :class:`TooManySimulations` where too many run.
    """
    settle_lost()
    # Reading a trace takes seconds: each user has one read at a time.
    if not _try_lock(user.pk):
        raise TooManySimulations(_("another simulation of yours is just being accepted; send one after the other"))
    check_room(user)
    scenario, source = _resolved(_with_own(body), user)
    checked = build(scenario, limits=LIMITS)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", [LockKey.SIMULATIONS])
    check_room(user)
    row = Simulation(user=user, name=checked.name, scenario=scenario, source=source, seen_at=timezone.now())
    text = scenario["trace"].get("text")
    if isinstance(text, str):
        content = text.encode()
        row.trace, row.trace_bytes = _name("trace"), len(content)
        row.trace_sha256 = storage.keep("simulations", row.trace, content)
        row.scenario = {**scenario, "trace": {key: value for key, value in scenario["trace"].items() if key != "text"}}
    row.save()
    audit.record("simulation.begin", ("simulation", row.pk, row.name), after={"source": source})
    forget_beyond(user)
    transaction.on_commit(lambda: ask_to_run(row.pk))
    return row


def _name(what: str) -> str:
    """A name in the storage that nothing has, in a folder for each of 256."""
    name = uuid.uuid4().hex
    return f"{name[:2]}/{name}-{what}"


def scenario_of(row: Simulation) -> dict[str, Any]:
    """The scenario as it was submitted, with the text of its trace. Raises ``storage.BytesLost``."""
    scenario: dict[str, Any] = row.scenario
    if not row.trace:
        return scenario
    text = storage.bytes_of("simulations", row.trace, row.trace_sha256).decode()
    return {**scenario, "trace": {**scenario["trace"], "text": text}}


def result_of(row: Simulation) -> dict[str, Any] | None:
    """What came of it, once it is done. Raises ``storage.BytesLost``."""
    if not row.result:
        return None
    found: dict[str, Any] = json.loads(storage.bytes_of("simulations", row.result, row.result_sha256))
    return found


def _with_own(body: dict[str, Any]) -> dict[str, Any]:
    """The scenario with the profiles as data where one of them is from the record."""
    asked = body.get("profiles")
    if not isinstance(asked, list) or all(name in PROFILES for name in asked if isinstance(name, str)):
        return body
    if len(asked) > LIMITS.cells or not all(isinstance(name, str) and len(name) <= 100 for name in asked):
        return body  # refused by whoever reads it
    try:
        return {**body, "profiles": {name: spec_of(name) for name in asked}}
    except ValueError as error:
        raise ScenarioError("profiles", str(error)) from None


def _resolved(body: dict[str, Any], user: User) -> tuple[dict[str, Any], str]:
    """The scenario with the user's own history or queue in the place of ``trace.history`` or ``trace.queue``, and the
    nodes of a pool in that of ``world.pool``; and what its trace comes from."""
    body = _with_nodes(body)
    trace = body.get("trace") or {"generate": {}}
    if not isinstance(trace, dict):
        raise ScenarioError("trace", _("must be a mapping with one of text, generate, history and queue"))
    own = [name for name in ("history", "queue") if name in trace]
    if not own:
        return {**body, "trace": trace}, next((name for name in ("text", "generate", "file") if name in trace), "")
    text = _history(trace["history"], user) if own[0] == "history" else _queue(trace["queue"], user)
    rest = {key: value for key, value in trace.items() if key == "first"}
    return {**body, "trace": {**rest, "text": text, "format": "history"}}, own[0]


def _history(asked: Any, user: User) -> str:
    asked = asked or {}
    days = asked.get("days", 7) if isinstance(asked, dict) else None
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 < days <= history.MOST_DAYS:
        problem = _("must be like {{days: 7}}, at most {most} days").format(most=history.MOST_DAYS)
        raise ScenarioError("trace.history", problem)
    text = history.text(days, _seen_of(asked, "trace.history.pool", user), int(LIMITS.arrivals))
    if not text:
        problem = _("no stage that you may see was completed in the last {days:g} days").format(days=days)
        raise ScenarioError("trace.history", problem)
    return text


def _queue(asked: Any, user: User) -> str:
    asked = asked or {}
    if not isinstance(asked, dict):
        raise ScenarioError("trace.queue", _("must be a mapping: {}, or with the pool"))
    text = history.queue(_seen_of(asked, "trace.queue.pool", user), int(LIMITS.arrivals))
    if not text:
        raise ScenarioError("trace.queue", _("no stage that you may see runs or waits"))
    return text


def _seen_of(asked: dict[str, Any], where: str, user: User) -> Q:
    """The condition of stages that the user may see, of one pool where that is named."""
    pool = asked.get("pool", "")
    return visible_jobs(user, "job__") & (Q(job__pool=_pool(pool, where)) if pool != "" else Q())


def _pool(name: Any, where: str) -> Pool:
    found = Pool.objects.filter(name=name[:63]).first() if isinstance(name, str) else None
    if found is None:
        raise ScenarioError(where, _("there is no pool {name}").format(name=str(name)[:63]))
    return found


def _with_nodes(body: dict[str, Any]) -> dict[str, Any]:
    """The scenario with the nodes and cores of the pool that its world names."""
    world = body.get("world")
    if not isinstance(world, dict) or "pool" not in world:
        return body
    if "nodes" in world:
        raise ScenarioError("world.pool", _("has its own nodes; leave out nodes or pool"))
    nodes, cores = nodes_of(_pool(world["pool"], "world.pool"))
    rest = {key: value for key, value in world.items() if key != "pool"}
    return {**body, "world": {"cores": cores, **rest, "nodes": nodes}}


def ask_to_run(simulation_id: int) -> None:
    """Has a worker run it."""
    from controlplane.simulations import tasks

    try:
        tasks.run.apply_async((simulation_id,), retry=False, expires=GONE_S)
    except OperationalError:
        end(simulation_id, BackgroundPhase.FAILED, told(clause("BrokerSilent")))


def run(simulation_id: int) -> None:
    """Starts the process of a simulation, and returns when it has ended. It ends with this one, a worker."""
    command = [sys.executable, "-P", "-m", "controlplane.simulations.worker", str(simulation_id), str(os.getpid())]
    # No working folder is imported from, whoever may write there.
    environment = {**os.environ, "YARD_DB_POOL": "0", "PYTHONPATH": str(settings.BASE_DIR)}
    try:
        process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, env=environment)
    except OSError as error:
        end(simulation_id, BackgroundPhase.FAILED, told(clause("NotStarted", fault=verbatim(str(error)))))
        return
    if not connection.in_atomic_block:
        connection.close()  # for the minutes that it takes
    with process, _running(process):
        try:
            process.wait(LONGEST_S + 30)
        except subprocess.TimeoutExpired:
            process.kill()
    # Where it could not say so itself.
    end(simulation_id, BackgroundPhase.FAILED, told(clause("ProcessEnded", status=process.returncode)))


@contextlib.contextmanager
def _running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    _processes.add(process)
    try:
        yield
    finally:
        _processes.discard(process)


def stop_all() -> None:
    """Ends the processes of a worker that is stopped, which would wait for them."""
    for process in list(_processes):
        process.kill()


@transaction.atomic
def cancel(simulation: Simulation) -> None:
    """Asks the process to end; it does within a second. Doing it twice is the same as once."""
    if Simulation.objects.filter(pk=simulation.pk, phase__in=OPEN).update(stopping=True):
        audit.record("simulation.cancel", ("simulation", simulation.pk, simulation.name))
    changes.announce("simulations")


def end(simulation_id: int, phase: BackgroundPhase, fault: Told = NO_FAULT, result: Any = None) -> bool:
    """Writes down how it ended, once; False where that was written before."""
    fields: dict[str, Any] = {"phase": phase, "fault": fault.text, "fault_said": fault.said, "ended_at": timezone.now()}
    if phase == BackgroundPhase.DONE:
        content, name = json.dumps(result, separators=(",", ":")).encode(), _name("result")
        digest = storage.keep("simulations", name, content)
        fields |= {"result": name, "result_bytes": len(content), "result_sha256": digest, "progress": 1.0}
    changed = Simulation.objects.filter(pk=simulation_id, phase__in=OPEN).update(**fields)
    if not changed:
        storage.forget("simulations", fields.get("result", ""))
    changes.announce("simulations")
    return bool(changed)


def settle_lost() -> None:
    """Gives up those whose process has not been seen for a while."""
    since = timezone.now() - timedelta(seconds=GONE_S)
    for row in Simulation.objects.filter(phase__in=OPEN, seen_at__lt=since).only("pk"):
        end(row.pk, BackgroundPhase.FAILED, told(clause("ProcessGone")))
