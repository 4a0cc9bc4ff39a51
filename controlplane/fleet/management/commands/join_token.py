"""Prints a new secret with which nodes may join a pool."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.fleet import service
from controlplane.pools.models import Pool


class Command(BaseCommand):
    help = "Prints a new secret with which nodes may join a pool. It is shown this once; only its digest is kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", default="default")
        parser.add_argument("--uses", type=int, default=1, help="how many nodes may join with it")
        parser.add_argument("--hours", type=float, default=1.0, help="how long it is valid")

    def handle(self, *args: Any, **options: Any) -> None:
        pool = Pool.objects.filter(name=options["pool"]).first()
        if pool is None:
            names = ", ".join(Pool.objects.values_list("name", flat=True)) or "none"
            raise CommandError(f"there is no pool {options['pool']}; there are {names}")
        if options["uses"] < 1 or options["hours"] <= 0:
            raise CommandError("--uses must be at least 1 and --hours more than 0")
        life = timedelta(hours=options["hours"])
        self.stdout.write(service.make_join_token(pool, uses=options["uses"], life=life))
