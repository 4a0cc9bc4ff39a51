"""What the containers of docker-compose.yml do once: make secrets, prepare the database, and watch a file's age.

``python -m deploy.container secrets FOLDER ROUTER | add-secrets-key FOLDER | prepare STORAGE TOKEN |
recent FILE SECONDS``

Nothing secret is printed: what a container prints, a log collector may keep for years.
"""

from __future__ import annotations

import argparse
import io
import secrets
import sys
import time
from pathlib import Path

from deploy.local.home import new_secrets_key, write_private
from deploy.prepare import prepare as make_first_records

SECRETS_KEYS = "secrets.keys"
ROUTER_KEY = "router.key"


def make_secrets(folder: Path, router: Path) -> int:
    """Make the database's password, the signing key, the key for secrets and that of the router where they are missing;
    nothing is ever overwritten. ``router`` is a folder that has the router's key alone: all that it may see."""
    folder.mkdir(parents=True, exist_ok=True)
    password_file, key_file, secrets_keys, router_key = (
        folder / name for name in ("database.password", "django.key", SECRETS_KEYS, ROUTER_KEY)
    )
    if not password_file.exists():
        write_private(password_file, secrets.token_urlsafe(32))
    if not key_file.exists():
        write_private(key_file, secrets.token_urlsafe(64) + "\n")
    if not secrets_keys.exists():
        write_private(secrets_keys, new_secrets_key())
    if not router_key.exists():
        write_private(router_key, secrets.token_urlsafe(48) + "\n")
    router.mkdir(parents=True, exist_ok=True)
    write_private(router / ROUTER_KEY, router_key.read_text())
    # libpq reads this file where PGPASSFILE names it, so that no password stands in an environment.
    write_private(folder / "pgpass", f"*:*:*:switchyard:{password_file.read_text()}\n")
    return 0


def add_secrets_key(folder: Path) -> int:
    """Put a new key for secrets before those that are there; ``manage.py rotate_secrets_key`` then uses it."""
    file = folder / SECRETS_KEYS
    write_private(file, new_secrets_key() + (file.read_text() if file.exists() else ""))
    return 0


def prepare(storage: str, token: Path) -> int:
    """Bring the tables up to date and make the first records; ``token`` gets what the agents beside this join with.

    ``storage`` is the folder that these agents share. A pool that is there keeps what an administrator gave it.
    """
    make_first_records(storage, "--keep-storage", "--no-tokens")
    from django.core.management import call_command

    said = io.StringIO()
    call_command("join_token", "--uses", "16", stdout=said)
    write_private(token, said.getvalue())
    print("Ready. Sign in by the link of: docker compose exec web python manage.py sign_in_link", flush=True)
    return 0


def recent(file: Path, seconds: float) -> int:
    """Tell by the exit status whether ``file`` was written within the last ``seconds``."""
    try:
        return 0 if time.time() - file.stat().st_mtime < seconds else 1
    except FileNotFoundError:
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m deploy.container")
    commands = top.add_subparsers(dest="command", required=True)
    first = commands.add_parser("secrets")
    first.add_argument("folder", type=Path)
    first.add_argument("router", type=Path)
    commands.add_parser("add-secrets-key").add_argument("folder", type=Path)
    first = commands.add_parser("prepare")
    first.add_argument("storage")
    first.add_argument("token", type=Path)
    health = commands.add_parser("recent")
    health.add_argument("file", type=Path)
    health.add_argument("seconds", type=float)
    return top


def main() -> int:
    """Dispatch to the command."""
    arguments = parser().parse_args()
    if arguments.command == "secrets":
        return make_secrets(arguments.folder, arguments.router)
    if arguments.command == "add-secrets-key":
        return add_secrets_key(arguments.folder)
    if arguments.command == "prepare":
        return prepare(arguments.storage, arguments.token)
    return recent(arguments.file, arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
