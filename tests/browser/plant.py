"""Migrates the database of DATABASE_URL and fills it with the demo's cluster: ``python -m tests.browser.plant``."""

from __future__ import annotations

import django

from tests.browser.site import HOSTILE, PASSWORD


def main() -> None:
    django.setup()
    from django.core.management import call_command

    from controlplane.demo.plant import plant

    call_command("migrate", verbosity=0)
    plant(days=0, password=PASSWORD, written=HOSTILE)


if __name__ == "__main__":
    main()
