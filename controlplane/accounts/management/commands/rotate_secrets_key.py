"""Wraps the data keys of all secrets with the newest key."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from controlplane.accounts import audit
from controlplane.accounts.keys import KeyUnavailable, add_key, wrapper
from controlplane.accounts.models import Sealed

AT_ONCE = 500


class Command(BaseCommand):
    help = (
        "Wraps the data keys of all secrets with the newest key, the first in the file of YARD_SECRETS_KEY_FILE. "
        "No secret is decrypted. The older keys can be removed from the file when this has ended without a fault."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--add", action="store_true", help="first put a new key into the file, or make the file")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["add"]:
                self.stdout.write(f"added key {add_key(settings.SECRETS_KEY_FILE)}")
            newest = wrapper().newest()
        except (KeyUnavailable, OSError) as error:
            raise CommandError(str(error)) from None
        done, faults = 0, list[str]()
        for model in apps.get_models():
            if issubclass(model, Sealed):
                count, failed = self._rewrap(model, newest)
                done += count
                faults += failed
        with audit.command("rotate_secrets_key"):
            audit.record("secrets.rotate_key", ("key", None, newest), after={"rewrapped": done, "failed": len(faults)})
        self.stdout.write(f"{done} secrets are wrapped with key {newest} now")
        if faults:
            raise CommandError(f"{len(faults)} could not be opened, and need the key that they name: {faults[0]}")

    def _rewrap(self, model: type[Sealed], newest: str) -> tuple[int, list[str]]:
        done, faults = 0, list[str]()
        ids = list(model._default_manager.exclude(key_id=newest).values_list("pk", flat=True))
        for start in range(0, len(ids), AT_ONCE):
            with transaction.atomic():
                # One that was set, or whose job was deleted, meanwhile is left as it is.
                for row in model._default_manager.select_for_update().filter(pk__in=ids[start : start + AT_ONCE]):
                    if row.key_id == newest:
                        continue
                    try:
                        row.rewrap()
                    except KeyUnavailable as error:
                        faults.append(f"{model._meta.verbose_name} {row}: {error}")
                        continue
                    row.save(update_fields=["wrapped_key", "key_id"])
                    done += 1
        return done, faults
