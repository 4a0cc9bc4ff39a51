"""Bring the tables up to date and make the first records: ``python -m deploy.prepare STORAGE [--static] [OPTION...]``.

With ``--static`` the static files are collected too, where they are not those that were collected last.
Prints what ``manage.py bootstrap --json`` prints; everything else goes to standard error. Run twice, it changes nothing
but makes new secrets, and sets the storage again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STATIC = "--static"


def prepare(storage: str, *options: str) -> dict[str, str]:
    """Migrate and bootstrap; ``storage`` is the folder that all nodes share. Returns the secrets to begin with.

    ``options`` are more options of ``manage.py bootstrap``.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django
    from django.core.management import call_command

    django.setup()
    with ThreadPoolExecutor(1) as aside:
        collected = aside.submit(collect_static) if STATIC in options else None
        call_command("migrate", interactive=False, verbosity=1 if sys.stderr.isatty() else 0, stdout=sys.stderr)
        if collected:
            collected.result()
    options = tuple(option for option in options if option != STATIC)
    said = io.StringIO()
    call_command("bootstrap", "--json", "--storage", storage, *options, stdout=said)
    first: dict[str, str] = json.loads(said.getvalue())
    return first


def collect_static() -> None:
    """Copies static files to where they are served from, with hashes in their names and compressed: seconds of work,
    so only after one of them changed."""
    from django.conf import settings
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    found = hashlib.sha256(settings.VERSION.encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            status = Path(storage.path(name)).stat()
            found.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    mark = Path(settings.STATIC_ROOT) / ".collected"
    if mark.is_file() and mark.read_text() == found.hexdigest():
        return
    mark.unlink(missing_ok=True)
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    mark.write_text(found.hexdigest())


if __name__ == "__main__":
    print(json.dumps(prepare(*sys.argv[1:])))
