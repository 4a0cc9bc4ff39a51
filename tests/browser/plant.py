"""Migrates the database that DATABASE_URL names and plants the seeded yard in it: ``python -m tests.browser.plant``."""

from __future__ import annotations

import django


def main() -> None:
    django.setup()
    from django.core.management import call_command

    from tests.browser.seed import plant

    call_command("migrate", verbosity=0)
    plant()


if __name__ == "__main__":
    main()
