"""Says that this database was restored from a backup: what came after it is not forgotten by nodes and disks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.models import F

from controlplane.accounts import audit
from controlplane.fleet.models import Node

MOST = 10**9


class Command(BaseCommand):
    help = (
        "Run this once after a database was restored from a backup, before it is used. Job numbers and project numbers "
        "that were given after the backup are not given again, for folders and files of theirs are still there; and "
        "nodes take orders at once, though they have seen newer ones."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--skip", type=int, default=10_000, help="how many numbers to leave out: more than were given since"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        skip = options["skip"]
        if not 1 <= skip <= MOST:
            raise CommandError(f"--skip must be from 1 to {MOST}")
        with audit.command("restored"), connection.cursor() as cursor:
            first = {}
            # Of projects there are few, and each number has one uid of a range.
            for sequence, by in (("jobs_job_number", skip), ("access_project_number", min(skip, 100))):
                cursor.execute("SELECT setval(%s, nextval(%s) + %s)", [sequence, sequence, by])
                first[sequence] = cursor.fetchone()[0] + 1
            nodes = Node.objects.update(generation=F("generation") + skip)
            audit.record("server.restored", ("server", None, "database"), after={"skip": skip, **first})
        self.stdout.write(
            f"the next job is #{first['jobs_job_number']}, the next project's number is "
            f"{first['access_project_number']}; {nodes} nodes take orders again"
        )
