"""Accepts simulations, starts a process for each, stops them, and notices when one is gone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from kombu.exceptions import OperationalError

from controlplane import changes
from controlplane.accounts import audit
from controlplane.accounts.models import User
from controlplane.accounts.permissions import visible_jobs
from controlplane.pools.models import Pool
from controlplane.pools.profiles import spec_of
from controlplane.simulations import history
from controlplane.simulations.models import OPEN, Phase, Simulation
from scheduler.profiles import PROFILES
from scheduler.scenario.scenario import Limits, ScenarioError, build

log = logging.getLogger(__name__)

LIMITS = Limits(arrivals=20_000, lines=50_000, devices=20_000, cells=24)
MOST_AT_ONCE = 2
LONGEST_S = 900.0
GONE_S = 60.0
KEPT = 50


class TooMany(Exception):
    """Raised where as many simulations run as this installation lets run at once."""


def submit(body: dict[str, Any], user: User) -> Simulation:
    """Accepts a scenario and starts its process once the row is there.

    ``trace.history`` (``{"days": 7}``, of one ``pool`` where that is named) stands for the finished stages that the
    user may see, and the name of an own profile for the version that is active now. Raises ``ScenarioError`` for what
    cannot be and :class:`TooMany` where too many run.
    """
    scenario, source = _resolved(_with_own(body), user)
    checked = build(scenario, limits=LIMITS)
    settle_lost()
    if Simulation.objects.filter(phase__in=OPEN).count() >= MOST_AT_ONCE:
        raise TooMany(_("{n} simulations run already; wait for one, or cancel one").format(n=MOST_AT_ONCE))
    with transaction.atomic():
        row = Simulation.objects.create(
            user=user, name=checked.name, scenario=scenario, source=source, seen_at=timezone.now()
        )
        old = Simulation.objects.filter(user=user).exclude(phase__in=OPEN).values_list("pk", flat=True)[KEPT:]
        Simulation.objects.filter(pk__in=list(old)).delete()
        audit.record("simulation.begin", ("simulation", row.pk, row.name), after={"source": source})
        transaction.on_commit(lambda: ask_to_launch(row.pk))
    return row


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
    """The scenario with the user's own history in the place of ``trace.history``; and what its trace comes from."""
    trace = body.get("trace") or {"generate": {}}
    if not isinstance(trace, dict):
        raise ScenarioError("trace", _("must be a mapping with one of text, generate and history"))
    if "history" not in trace:
        return {**body, "trace": trace}, next((name for name in ("text", "generate", "file") if name in trace), "")
    asked = trace["history"] or {}
    days = asked.get("days", 7) if isinstance(asked, dict) else None
    pool = asked.get("pool", "") if isinstance(asked, dict) else ""
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0 < days <= history.MOST_DAYS:
        problem = _("must be like {{days: 7}}, at most {most} days").format(most=history.MOST_DAYS)
        raise ScenarioError("trace.history", problem)
    if not isinstance(pool, str) or (pool and not Pool.objects.filter(name=pool[:63]).exists()):
        raise ScenarioError("trace.history.pool", _("there is no pool {name}").format(name=str(pool)[:63]))
    condition = visible_jobs(user, "job__") & (Q(job__pool__name=pool) if pool else Q())
    text = history.text(days, condition, int(LIMITS.arrivals))
    if not text:
        problem = _("no stage that you may see was completed in the last {days:g} days").format(days=days)
        raise ScenarioError("trace.history", problem)
    rest = {key: value for key, value in trace.items() if key == "first"}
    return {**body, "trace": {**rest, "text": text, "format": "history"}}, "history"


def ask_to_launch(simulation_id: int) -> None:
    """Has a worker start the process."""
    from controlplane.simulations import tasks

    try:
        tasks.launch.apply_async((simulation_id,), retry=False, expires=GONE_S)
    except OperationalError:
        end(simulation_id, Phase.FAILED, "it could not be started: the message broker does not answer")


def launch(simulation_id: int) -> None:
    """Starts the process. It ends with this one, a worker, so that a stopped worker leaves nothing behind."""
    command = [sys.executable, "-P", "-m", "controlplane.simulations.worker", str(simulation_id), str(os.getpid())]
    # No working folder is imported from, whoever may write there.
    environment = {**os.environ, "YARD_DB_POOL": "0", "PYTHONPATH": str(settings.BASE_DIR)}
    try:
        process = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, env=environment)
    except OSError as error:
        end(simulation_id, Phase.FAILED, f"its process could not be started: {error}")
        return
    threading.Thread(target=process.wait, name=f"simulation {simulation_id}", daemon=True).start()


@transaction.atomic
def cancel(simulation: Simulation) -> None:
    """Asks the process to end; it does within a second. Doing it twice is the same as once."""
    if Simulation.objects.filter(pk=simulation.pk, phase__in=OPEN).update(stopping=True):
        audit.record("simulation.cancel", ("simulation", simulation.pk, simulation.name))
    changes.announce("simulations")


def end(simulation_id: int, phase: Phase, fault: str = "", result: Any = None) -> bool:
    """Writes down how it ended, once; False where that was written before."""
    fields: dict[str, Any] = {"phase": phase, "fault": fault, "ended_at": timezone.now()}
    if phase == Phase.DONE:
        fields |= {"result": result, "progress": 1.0}
    changed = Simulation.objects.filter(pk=simulation_id, phase__in=OPEN).update(**fields)
    changes.announce("simulations")
    return bool(changed)


def settle_lost() -> None:
    """Gives up those whose process has not been seen for a while."""
    since = timezone.now() - timedelta(seconds=GONE_S)
    for row in Simulation.objects.filter(phase__in=OPEN, seen_at__lt=since).only("pk"):
        end(row.pk, Phase.FAILED, "its process is gone")
