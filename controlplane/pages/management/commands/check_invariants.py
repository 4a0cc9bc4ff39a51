"""``manage.py check_invariants``: checks the invariants of the database."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.operations import invariants


class Command(BaseCommand):
    """Prints each violated invariant with the first violating rows; exits with 1 if there is one."""

    help = "Tell whether the record holds what must always hold; exit with 1 where it does not."

    def handle(self, *args: Any, **options: Any) -> None:
        """Checks all invariants."""
        found = invariants.broken()
        for says in found:
            self.stdout.write(says)
        if found:
            raise SystemExit(1)
        self.stdout.write(f"all {len(invariants.INVARIANTS)} invariants hold")
