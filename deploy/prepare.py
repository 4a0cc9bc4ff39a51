"""Bring the tables up to date and make the first records: ``python -m deploy.prepare STORAGE [OPTION...]``.

Prints what ``manage.py bootstrap --json`` prints; everything else goes to standard error. Run twice, it changes nothing
but makes new secrets, and sets the storage again.
"""

from __future__ import annotations

import io
import json
import os
import sys


def prepare(storage: str, *options: str) -> dict[str, str]:
    """Migrate and bootstrap; ``storage`` is the folder that all nodes share. Returns the secrets to begin with.

    ``options`` are more options of ``manage.py bootstrap``.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", interactive=False, verbosity=1 if sys.stderr.isatty() else 0, stdout=sys.stderr)
    said = io.StringIO()
    call_command("bootstrap", "--json", "--storage", storage, *options, stdout=said)
    first: dict[str, str] = json.loads(said.getvalue())
    return first


if __name__ == "__main__":
    print(json.dumps(prepare(*sys.argv[1:])))
