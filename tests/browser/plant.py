"""Migrates the database of DATABASE_URL and fills it with the demo's cluster.

``python -m tests.browser.plant WRITTEN``, where the last word is what users wrote in names, notes and logs.
"""

from __future__ import annotations

import sys

import django

from tests.browser.site import PASSWORD


def main() -> None:
    django.setup()
    from django.core.management import call_command

    from controlplane.demo.plant import plant

    call_command("migrate", verbosity=0)
    plant(days=0, password=PASSWORD, written=sys.argv[1])


if __name__ == "__main__":
    main()
