"""The process of one simulation: ``python -m controlplane.simulations.worker ID PARENT``.

Works at low priority. A watcher beside it says every second that it lives, and ends the process where it was cancelled,
takes too long, or the server that started it is gone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django

LOOK_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Live through the scenario of a row. Returns 0 where its end was written down, whatever it was."""
    simulation_id, parent = (int(word) for word in (argv or sys.argv[1:]))
    os.nice(15)  # who asks a question waits for the answer, and no simulation holds it up
    django.setup()
    threading.Thread(target=_watch, args=(simulation_id, parent), name="watch", daemon=True).start()
    run(simulation_id)
    return 0


def run(simulation_id: int) -> None:
    """Do the work of the row and write its result."""
    from django.utils import timezone

    from controlplane import changes
    from controlplane.background import BackgroundPhase
    from controlplane.clauses import clause, of_error, told
    from controlplane.simulations import service
    from controlplane.simulations.models import Simulation
    from scheduler.scenario import report
    from scheduler.scenario.scenario import Cell, build

    row = Simulation.objects.get(pk=simulation_id)
    now = timezone.now()
    if not Simulation.objects.filter(pk=row.pk, phase=BackgroundPhase.WAITING).update(
        phase=BackgroundPhase.RUNNING, started_at=now, seen_at=now
    ):
        return
    told_at = 0.0

    def progress(number: int, done: int, total: int, cell: Cell) -> None:
        nonlocal told_at
        if time.monotonic() - told_at < LOOK_S:
            return
        told_at = time.monotonic()
        share = (number + done / max(total, 1)) / len(scenario.cells)
        of = {"profile": cell.profile, "load": f"{cell.load:g}", "seed": cell.seed}
        doing = told(clause("Cell", done=f"{done:,}", total=f"{total:,}", **of))
        fields = {"progress": round(share, 4), "doing": doing.text[:200], "doing_said": doing.said}
        Simulation.objects.filter(pk=row.pk).update(**fields)
        changes.announce("simulations")

    try:
        scenario = build(service.scenario_of(row), limits=service.LIMITS)
        result = report.simulate(scenario, progress)
        service.end(row.pk, BackgroundPhase.DONE, result=result)
    except Exception as error:  # whatever it is, its owner has to hear of it
        service.end(row.pk, BackgroundPhase.FAILED, of_error(error))
        raise


def _watch(simulation_id: int, parent: int) -> None:
    """Never returns; ends the process where there is no more reason for it."""
    from django.db import close_old_connections
    from django.utils import timezone

    from controlplane.background import BackgroundPhase
    from controlplane.clauses import clause, told
    from controlplane.simulations import service
    from controlplane.simulations.models import Simulation

    began = time.monotonic()
    while True:
        time.sleep(LOOK_S)
        try:
            Simulation.objects.filter(pk=simulation_id).update(seen_at=timezone.now())
            row = Simulation.objects.filter(pk=simulation_id).values_list("stopping", flat=True).first()
            if row is None:
                os._exit(0)
            if row:
                service.end(simulation_id, BackgroundPhase.CANCELLED)
                os._exit(0)
            if time.monotonic() - began > service.LONGEST_S:
                late = told(clause("TookTooLong", minutes=round(service.LONGEST_S / 60)))
                service.end(simulation_id, BackgroundPhase.FAILED, late)
                os._exit(0)
            if os.getppid() != parent:
                service.end(simulation_id, BackgroundPhase.FAILED, told(clause("ServerStopped")))
                os._exit(0)
        except Exception:  # noqa: BLE001  a database that is away for a moment is no reason to lose the work
            close_old_connections()
            if os.getppid() != parent:
                os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
