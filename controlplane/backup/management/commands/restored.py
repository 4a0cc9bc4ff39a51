"""Adapts a database that was restored from a backup by other means than ``manage.py restore``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import audit
from controlplane.backup import lineage, revocations

MOST = 10**9


class Command(BaseCommand):
    help = (
        "Run this once after a database was restored from a backup by other means than `manage.py restore`, before it "
        "is used. Job numbers and project numbers that were given after the backup are not given again, for folders "
        "and files of theirs are still there; nodes take orders at once, though they have seen newer ones; and "
        "everybody signs in anew."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--skip", type=int, default=10_000, help="how many numbers to leave out: more than were given since"
        )
        parser.add_argument("--revoke-tokens", action="store_true", help="revoke all access tokens and join tokens")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["skip"] <= MOST:
            raise CommandError(f"--skip must be from 1 to {MOST}")
        with audit.command("restored"):
            skipped = lineage.skip(options["skip"])
            revoked = revocations.revoke_all(revocations.Revoked()) if options["revoke_tokens"] else None
            revocations.end_sessions()
            told = {"skip": options["skip"], "revoked": revoked.said() if revoked else ""}
            audit.record("server.restored", ("server", None, "database"), after=told)
        self.stdout.write(
            f"the next job is #{skipped.job}, the next project's number is {skipped.project}; {skipped.nodes} nodes "
            "take orders again"
        )
        self.stdout.write(
            f"revoked: {revoked.said()}"
            if revoked
            else "What was revoked since the backup is valid again: revoke it, or run this again with --revoke-tokens."
        )
