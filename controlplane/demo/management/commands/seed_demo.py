"""Fills an empty installation with a week of a simulated cluster."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, NoReturn

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import connection, transaction

from controlplane.accounts import audit
from controlplane.accounts import service as access
from controlplane.demo import measurements
from controlplane.demo.plant import NODES, plant
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job

MOST_DAYS = 14
# The nodes of the demo: no others are measured, whose agents would do so.
OWN = (*NODES, "workstation")


class Command(BaseCommand):
    help = "Fills an empty database with a simulated cluster: nodes, jobs, logs, quotas and usage of some days."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seed", type=int, default=7, help="a number: the same one makes the same cluster")
        parser.add_argument("--days", type=int, default=7, help=f"days with jobs before today, 0 to {MOST_DAYS}")
        parser.add_argument("--password", help="with which all its users can sign in")
        parser.add_argument("--keep-measuring", action="store_true", help="measure devices until interrupted")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 <= options["days"] <= MOST_DAYS:
            raise CommandError(f"--days must be from 0 to {MOST_DAYS}, not {options['days']}")
        if options["password"] is not None:
            try:
                validate_password(options["password"])
            except ValidationError as error:
                raise CommandError(f"--password: {' '.join(error.messages)}") from None
        nodes, jobs = Node.objects.count(), Job.objects.count()
        if options["keep_measuring"] and nodes and not Node.objects.exclude(simulated=True, name__in=OWN).exists():
            self.stdout.write("a simulated cluster is there: its devices are measured until interrupted")
            self._keep_measuring()
        if nodes or jobs:
            raise CommandError(
                f"this database has {nodes} nodes and {jobs} jobs; seed_demo fills only one that has none of both, "
                "such as a new one: set DATABASE_URL and run migrate"
            )
        with audit.command("seed_demo"), transaction.atomic():
            cluster = plant(seed=options["seed"], days=options["days"], password=options["password"])
        link = access.make_sign_in_link(cluster.admin, life=timedelta(hours=12))
        self.stdout.write(f"{len(cluster.nodes)} simulated nodes and {len(cluster.jobs)} jobs are there")
        self.stdout.write(f"sign in as admin within 12 hours, once: {link}")
        if options["keep_measuring"]:
            self._keep_measuring()
        self.stdout.write("pages tell how old its measurements are; seed_demo --keep-measuring goes on measuring")

    def _keep_measuring(self) -> NoReturn:
        while True:
            with connection.cursor() as cursor:
                for statement in (measurements.DEVICES, measurements.PARTS, measurements.REPORTED):
                    cursor.execute(statement)
            time.sleep(3)
