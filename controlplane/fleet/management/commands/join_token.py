"""Prints a new secret with which nodes may join a pool, or one node may join again."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import audit
from controlplane.fleet import service
from controlplane.fleet.models import Node
from controlplane.pools.models import Pool


class Command(BaseCommand):
    help = (
        "Prints a new secret with which nodes may join a pool, or one node that was installed anew may join again. "
        "It is shown this once; only its digest is kept."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--pool", default="default")
        parser.add_argument("--node", help="the node that may join again with it, once, instead of new ones")
        parser.add_argument("--uses", type=int, default=1, help="how many nodes may join with it")
        parser.add_argument("--hours", type=float, default=1.0, help="how long it is valid")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["uses"] < 1 or options["hours"] <= 0:
            raise CommandError("--uses must be at least 1 and --hours more than 0")
        life = timedelta(hours=options["hours"])
        if options["node"]:
            node = Node.objects.filter(name=options["node"]).first()
            if node is None:
                raise CommandError(f"there is no node {options['node']}; a new name joins with a token of its pool")
            with audit.command("join_token"):
                secret = service.make_return_token(node, life=life)
            self.stdout.write(secret)
            return
        pool = Pool.objects.filter(name=options["pool"]).first()
        if pool is None:
            names = ", ".join(Pool.objects.values_list("name", flat=True)) or "none"
            raise CommandError(f"there is no pool {options['pool']}; there are {names}")
        with audit.command("join_token"):
            secret = service.make_join_token(pool, uses=options["uses"], life=life)
        self.stdout.write(secret)
