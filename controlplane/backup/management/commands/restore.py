"""``manage.py restore FOLDER``: replaces the installation by a backup, and adapts nodes and numbers."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from redis.exceptions import RedisError

from controlplane.accounts import audit
from controlplane.backup import folders, keys, lineage, postgres, revocations
from controlplane.backup.manifest import DATABASE, KEYS, BackupUnusable, Manifest

LEAST_SKIP = 10_000


class Command(BaseCommand):
    help = (
        "Put the backup in FOLDER in the place of what the database and the folders beside it hold, while nothing else "
        "uses them. Numbers that were given since are not given again, nodes take orders at once, what runs and the "
        "record does not know is shown as a survivor, and what may have run since is held."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path)
        parser.add_argument("--yes", action="store_true", help="replace a record that is there")
        parser.add_argument(
            "--skip", type=int, default=LEAST_SKIP, help="how many numbers to leave out: more than were given since"
        )
        parser.add_argument(
            "--no-hold", action="store_true", help="let jobs start that wait in the backup and may have run since"
        )
        parser.add_argument(
            "--revoke-tokens",
            action="store_true",
            help="revoke all access tokens and join tokens, where nobody knows which were revoked since the backup",
        )
        parser.add_argument(
            "--with-keys",
            type=Path,
            metavar="FILE",
            help="also put the keys where this installation's lie; FILE holds the passphrase",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["folder"].absolute()
        if not 1 <= options["skip"] <= 10**9:
            raise CommandError(f"--skip must be from 1 to {10**9}")
        try:
            manifest = Manifest.read(folder)
            _check_release(manifest)
            manifest.check(folder)
            found_keys = _unsealed(folder, manifest, options["with_keys"])
            self._replaceable(options["yes"])
            before = lineage.before(manifest.made_at)
            later = revocations.valid()
            with tempfile.TemporaryDirectory(prefix="yard-restore-") as scratch:
                postgres.load(folder / DATABASE, manifest.rows, Path(scratch))
        except BackupUnusable as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(f"the database does not answer: {error}".strip()) from None
        self.stdout.write(f"the database is that of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC")
        if not manifest.rows:
            self.stdout.write("its rows were not counted when it was made, and are not compared")
        try:
            self._revoke(folder, manifest, later, options)
        except (CommandError, DatabaseError, OSError) as error:
            raise CommandError(
                f"the database is restored, and what was revoked since is not revoked again: {error}. Start nothing; "
                "see to that and run this again with --revoke-tokens"
            ) from None
        try:
            self._follow_up(folder, manifest, found_keys, before, options)
        except (BackupUnusable, DatabaseError, OSError) as error:
            raise CommandError(
                f"the database is restored, and what follows is not: {error}. Start nothing; see to that and run this "
                "again"
            ) from None

    def _replaceable(self, yes: bool) -> None:
        """Raise CommandError if others use the database, or if it has data and replacing it was not confirmed."""
        if others := postgres.connected():
            listed = "".join(f"\n  {each}" for each in others)
            raise CommandError(f"{len(others)} others are connected to the database; stop them first:{listed}")
        if connection.introspection.table_names() and not yes:
            raise CommandError("the database holds tables already; --yes has them replaced, and there is no way back")

    def _revoke(self, folder: Path, manifest: Manifest, later: revocations.Valid | None, options: Any) -> None:
        """Migrate the tables, and revoke again what was revoked since the backup, if known."""
        call_command("migrate", interactive=False, verbosity=0, stdout=self.stderr)
        # Also if later steps fail, because the database has been replaced by now.
        with audit.command("restore"):
            revoked = revocations.repeat(later)
            is_known = revoked is not None
            if options["revoke_tokens"]:
                revoked = revocations.revoke_all(revoked or revocations.Revoked())
            revocations.end_sessions()
            of = {"folder": str(folder), "made_at": manifest.made_at, "version": manifest.version}
            more = {"skip": options["skip"], "hold": not options["no_hold"], "with_keys": bool(options["with_keys"])}
            told = {"revoked": revoked.said() if revoked else ""}
            audit.record("server.restore", ("server", None, "database"), after=of | more | told)
        self.stdout.write("Everybody signs in anew in browsers.")
        if revoked:
            self.stdout.write(f"revoked again, as in the record that was replaced or as asked for: {revoked.said()}")
        if not is_known:
            tokens, joins, nodes = revocations.left()
            self.stdout.write(
                "Valid again is what was revoked since the backup, for the record that was replaced does not tell: any "
                f"of {tokens} access tokens, {joins} join tokens and {nodes} nodes' credentials, passwords, and people "
                "who were deactivated. Revoke them; --revoke-tokens revokes all tokens."
            )
        self.stdout.write(
            "Roles, members of projects, second factors and projects' secrets are those of the backup: see to those "
            "that were taken away since."
        )

    def _follow_up(
        self, folder: Path, manifest: Manifest, found_keys: dict[Path, bytes], before: lineage.Before, options: Any
    ) -> None:
        there = folders.folders(decisions=True)
        for piece in manifest.pieces:
            name = piece.name.removesuffix(".tar")
            if name != piece.name:
                if name not in there:
                    raise BackupUnusable(f"this installation has no folder for {piece.name}")
                self.stdout.write(f"{folders.unpack(folder / piece.name, there[name]):,} files of {name}")
        for path, key in found_keys.items():
            _write_key(path, key)
            self.stdout.write(f"the key in {path}")
        held = [] if options["no_hold"] else lineage.hold(before.began, manifest.made_at)
        skipped = lineage.skip(options["skip"], before.last_job)
        try:
            cache.clear()
        except (RedisError, OSError) as error:
            self.stderr.write(f"what Redis remembers could not be cleared ({error}): restart it before anything else")
        self.stdout.write(
            f"the next job is #{skipped.job}, the next project's number is {skipped.project}; {skipped.nodes} nodes "
            "take orders again"
        )
        if held:
            shown = ", ".join(f"#{number}" for number in held[:20]) + (" ..." if len(held) > 20 else "")
            said = "1 job waits in the backup and may have run since; it is held"
            if len(held) > 1:
                said = f"{len(held)} jobs wait in the backup and may have run since; they are held"
            self.stdout.write(f"{said}: {shown}")
        for name in manifest.elsewhere:
            self.stdout.write(f"The storage {name} is not part of the backup; restore it where it is.")


def _check_release(manifest: Manifest) -> None:
    """Raise :class:`BackupUnusable` for the backup of a newer release."""
    known = MigrationLoader(None).disk_migrations
    newer = sorted(
        f"{app}.{name}"
        for app, names in manifest.migrations.items()
        for name in names
        if known is not None and (app, name) not in known
    )
    if newer:
        raise BackupUnusable(
            f"the backup was made by another release than this ({manifest.version}, {settings.VERSION} is here), which "
            f"does not know its {newer[0]}; restore it with that release or a newer one"
        )


def _unsealed(folder: Path, manifest: Manifest, passphrase_file: Path | None) -> dict[Path, bytes]:
    """Return the keys by the file that each belongs to."""
    if passphrase_file is None:
        return {}
    if KEYS not in manifest.names():
        raise BackupUnusable(f"{folder} holds no keys")
    named = keys.files()
    found = keys.unseal((folder / KEYS).read_bytes(), keys.passphrase(passphrase_file))
    for name in found:
        if name not in named:
            raise BackupUnusable(f"{name} is in the backup; set it to the file where its key belongs")
        if not os.access(named[name].parent, os.W_OK):
            raise BackupUnusable(f"{named[name]} cannot be written, and a key of the backup belongs there")
    return {named[name]: key for name, key in found.items()}


def _write_key(path: Path, key: bytes) -> None:
    owner = path.parent.stat()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
