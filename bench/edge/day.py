"""One day of a node that is cut off, and the hours after it. ``python -m bench.edge.day SEED DAYS`` prints its figures.

It runs beside a stack, in the environment of whose parts it reaches their database.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from switchyard.node_socket import uuid7

if TYPE_CHECKING:
    from bench.edge.node import EdgeNode
    from bench.edge.record import EdgeRecord

STEP_S: Final = 60.0
DAY_S: Final = 86_400.0
# Chances in each minute of a submission, of a kill between two steps, of the power going; in each write, of a kill.
SUBMITS, KILLS, REBOOTS, WRITES = 0.2, 0.02, 0.002, 0.01
# After the day: of a report that is lost, of a lost answer, and of a restored database.
LOSES_UP, LOSES_DOWN, RESTORES = 0.2, 0.2, 0.05
MOST_MINUTES: Final = 1_500


def day(node: EdgeNode, record: EdgeRecord, dice: random.Random, cut_s: float = DAY_S) -> dict[str, int]:
    """Cut the node off, let its accounts work, and let the link come back badly; return what was lost and doubled."""
    from bench.edge.record import now

    marks = [now()]
    while node.up_s < cut_s:
        if dice.random() < SUBMITS:
            node.submit(uuid7(node.up_s))
        for job in [job for job in node.asked if job not in node.accepted][:3]:
            node.submit(job)  # nobody answered: its account asks once more
        if dice.random() < KILLS:
            node.kill()
        if dice.random() < REBOOTS:
            node.reboot()
        node.step(STEP_S)
    for minute in range(MOST_MINUTES):
        node.step(STEP_S)
        is_bad = minute < 120
        if is_bad and dice.random() < KILLS:
            node.kill()
        if is_bad and dice.random() < RESTORES:
            record.restore(dice.choice(marks))
            node.is_first = True  # every connection breaks when a database is restored
        report = node.report()
        if is_bad and dice.random() < LOSES_UP:
            continue
        answer = record.exchange(report)
        if is_bad and dice.random() < 0.1:
            answer = record.exchange(report) or answer  # it came twice
        marks = [*marks[-20:], now()]
        if answer is not None and not (is_bad and dice.random() < LOSES_DOWN):
            node.take(answer)
        if not is_bad and not node.open:
            break
    return {
        "accepted": len(node.accepted),
        "lost": len(node.accepted - record.ended()),
        "doubled": node.doubled + record.doubled({*node.asked}),
        "kills": node.kills,
        "restores": record.restores,
    }


def main(seed: int, days: int) -> None:
    import django

    django.setup()
    from bench.edge.node import PROJECT, EdgeNode
    from bench.edge.record import EdgeRecord
    from controlplane.accounts.models import Member, Project, User
    from controlplane.fleet import service as fleet
    from controlplane.pools.models import Pool

    total: dict[str, int] = {}
    for turn in range(days):
        dice = random.Random(seed + turn)
        project, _ = Project.objects.get_or_create(name=f"{PROJECT}-{turn}" if turn else PROJECT)
        user = User.objects.get_or_create(username=f"edge-{turn}")[0]
        Member.objects.get_or_create(project=project, user=user)
        pool = Pool.objects.get_or_create(name=f"edge-{turn}")[0]
        row, _ = fleet.enrol(fleet.make_join_token(pool), f"edge-{turn}")
        record = EdgeRecord(row, project, user)
        with tempfile.TemporaryDirectory(prefix="yard-edge-") as folder:
            node = EdgeNode(f"edge-{turn}", Path(folder), dice, killed=WRITES)
            try:
                found = day(node, record, dice)
            finally:
                node.close()
        total = {name: total.get(name, 0) + count for name, count in found.items()}
    print(json.dumps(total))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    main(int(sys.argv[1]), int(sys.argv[2]))
