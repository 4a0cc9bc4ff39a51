"""Prints a new access token of a user."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import audit, service
from controlplane.accounts.models import User


class Command(BaseCommand):
    help = "Prints a new access token of a user. It is shown this once; only its digest is kept."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")
        parser.add_argument("--name", default="made on the command line", help="what it is for")
        parser.add_argument("--scope", action="append", choices=service.SCOPES, help="may be repeated")
        parser.add_argument("--days", type=int, default=90, help="how long it is valid")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user {options['user']}; users are made in the administration")
        scopes = options["scope"] or ["read", "submit"]
        with audit.command("yard_token"):
            _, secret = service.make_token(user, options["name"], scopes=scopes, life=timedelta(days=options["days"]))
        self.stdout.write(secret)
