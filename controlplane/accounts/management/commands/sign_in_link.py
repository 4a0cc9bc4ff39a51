"""Prints a link that signs a user in once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import audit, service


class Command(BaseCommand):
    help = "Prints a link that signs a user in once, within a quarter of an hour."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", nargs="?", default="admin")
        parser.add_argument("--minutes", type=int, default=15, help="how long the link is valid")
        parser.add_argument("--path", action="store_true", help="print the path only, without the server's address")

    def handle(self, *args: Any, **options: Any) -> None:
        user = service.people().filter(username=options["user"]).first()
        if user is None:
            raise CommandError(
                f"there is no active user {options['user']} who may sign in; the administration makes users"
            )
        with audit.command("sign_in_link"):
            path = service.make_sign_in_link(user, life=timedelta(minutes=options["minutes"]))
        self.stdout.write(path if options["path"] else settings.PUBLIC_URL.rstrip("/") + path)
