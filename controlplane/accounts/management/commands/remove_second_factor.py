"""Removes the second factor of a user who lost theirs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from allauth.mfa.models import Authenticator
from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import audit
from controlplane.accounts.models import User


class Command(BaseCommand):
    help = "Removes the second factor and the recovery codes of a user who lost theirs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"there is no user {options['user']}")
        with audit.command("remove_second_factor"):
            removed, _ = Authenticator.objects.filter(user=user).delete()
            audit.record("user.factor_remove", user, before={"factors": removed})
        self.stdout.write(f"{user} has no second factor any more" if removed else f"{user} had no second factor")
