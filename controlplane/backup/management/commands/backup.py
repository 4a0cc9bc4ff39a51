"""``manage.py backup FOLDER``: backs up the database, its files and, on request, the keys, while the installation
runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from django.db.migrations.recorder import MigrationRecorder

from controlplane.accounts import audit
from controlplane.backup import folders, keys, postgres
from controlplane.backup.manifest import DATABASE, FORMAT, KEYS, BackupUnusable, Manifest, Piece, digest
from controlplane.fleet.service import now_in_database


class Command(BaseCommand):
    help = (
        "Write a backup into a new FOLDER: the database as of one moment, bundles, logs and what else lies beside it. "
        "Nothing need be stopped. The folder gets its name when all is in it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="a folder that is not there yet")
        parser.add_argument(
            "--verify", action="store_true", help="write nothing; read a backup that is there, all of it"
        )
        parser.add_argument("--decisions", action="store_true", help="also the decision log, which replays need")
        parser.add_argument(
            "--with-keys",
            type=Path,
            metavar="FILE",
            help="also the installation's keys, sealed with the passphrase that lies in this file",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["folder"].absolute()
        try:
            if options["verify"]:
                manifest = verify(folder)
                self.stdout.write(f"{folder} is whole")
            else:
                manifest = make(folder, options["decisions"], options["with_keys"])
                self.stdout.write(f"{folder} is made")
                self._record(folder, options)
        except BackupUnusable as error:
            raise CommandError(str(error)) from None
        except (DatabaseError, OSError) as error:
            raise CommandError(f"{type(error).__name__}: {error}".strip()) from None
        for piece in manifest.pieces:
            self.stdout.write(f"  {piece.name:<20} {piece.size:>15,} bytes")
        self.stdout.write(f"  of {manifest.cluster} at {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC, {manifest.version}")
        for name in manifest.elsewhere:
            self.stdout.write(f"  without the storage {name}: it lies in no folder; back it up where it is")

    def _record(self, folder: Path, options: Any) -> None:
        """Writes the audit entry, if possible: a backup of a read-only database, or of an earlier release's, is valid
        too."""
        made = {"folder": str(folder), "decisions": options["decisions"], "with_keys": bool(options["with_keys"])}
        try:
            with audit.command("backup"):
                audit.record("server.backup", ("server", None, "database"), after=made)
        except DatabaseError as error:
            self.stderr.write(f"the backup is whole, but not in the audit log: {error}".strip())


def make(folder: Path, decisions: bool, passphrase_file: Path | None) -> Manifest:
    """Write the backup. Raises :class:`BackupUnusable`."""
    if os.path.lexists(folder):
        raise BackupUnusable(f"{folder} is there already; name a folder that is not")
    if not folder.parent.is_dir():
        raise BackupUnusable(f"{folder.parent} is no folder; make it first")
    sealed = _sealed(passphrase_file)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-unfinished-", dir=folder.parent))
    try:
        recorded: dict[str, list[str]] = {}
        for app, name in sorted(MigrationRecorder(connection).applied_migrations()):
            recorded.setdefault(app, []).append(name)
        made_at = now_in_database()
        rows = postgres.dump(work / DATABASE)
        names = [DATABASE]
        beside = folders.folders(decisions)
        for name, path in beside.items():
            folders.pack(path, work / f"{name}.tar", set(beside.values()) - {path} | {folder.parent / work.name})
            names.append(f"{name}.tar")
        if sealed is not None:
            (work / KEYS).write_bytes(sealed)
            names.append(KEYS)
        manifest = Manifest(
            format=FORMAT,
            version=settings.VERSION,
            cluster=settings.CLUSTER_NAME,
            made_at=made_at,
            postgres=postgres.server_version(),
            migrations=recorded,
            pieces=[_onto_disk(work / name) for name in names],
            elsewhere=folders.external_storages(),
            rows=rows,
        )
        manifest.write(work)
        _onto_disk(work / "manifest.json")
        _sync(work)
        work.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def verify(folder: Path) -> Manifest:
    """Verify all of a backup. Raises :class:`BackupUnusable`."""
    manifest = Manifest.read(folder)
    manifest.check(folder)
    postgres.contents(folder / DATABASE, postgres.programs())
    return manifest


def _sealed(passphrase_file: Path | None) -> bytes | None:
    if passphrase_file is None:
        return None
    named = keys.files()
    if "YARD_SECRET_KEY_FILE" not in named:
        raise BackupUnusable("--with-keys seals what YARD_SECRET_KEY_FILE names, and it is not set")
    # A key service may replace the file of keys for secrets.
    found = {name: path.read_bytes() for name, path in named.items() if path.is_file()}
    return keys.seal(found, keys.passphrase(passphrase_file))


def _onto_disk(path: Path) -> Piece:
    _sync(path)
    return digest(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
