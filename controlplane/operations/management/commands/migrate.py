"""``manage.py migrate``, like Django's, but it never blocks a running cluster for long.

A change of a table waits for transactions that use it, and later ones wait behind the change. So each statement waits
for its lock only briefly, gives up, lets the others go on, and is tried again; earlier statements are kept.
"""

from __future__ import annotations

import re
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from psycopg.errors import LockNotAvailable

DURATION = re.compile(r"[1-9][0-9]{0,5}(ms|s)")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0


class Command(migrate.Command):
    """Limits how long each statement waits for a lock, but not how long it may run."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the lock timeout and the number of attempts."""
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-timeout", default="2s", help="how long a statement waits for a table, such as 500ms or 2s"
        )
        parser.add_argument("--tries", type=int, default=20, help="how often a migration that had to give up is tried")

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrates; prints the transactions in the way, if any."""
        timeout, tries = options["lock_timeout"], options["tries"]
        if not DURATION.fullmatch(timeout):
            raise CommandError(f'--lock-timeout is "{timeout}"; it is like 500ms or 2s')
        if not 1 <= tries <= 1000:
            raise CommandError("--tries must be from 1 to 1000")
        connection = connections[options["database"]]
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(tries)):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', '0', false), "
                    "set_config('idle_in_transaction_session_timeout', '0', false)",
                    [timeout],
                )
            try:
                super().handle(*args, **options)
                return
            except OperationalError as error:
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
                where = str(error).strip().splitlines()[0]
            finally:
                with connection.cursor() as cursor:
                    cursor.execute(
                        "RESET lock_timeout; RESET statement_timeout; RESET idle_in_transaction_session_timeout"
                    )
            in_the_way = (
                f"a migration waited {timeout} for a table and let the others go on ({where}); "
                f"{self._holders(options['database'])}"
            )
            if not left:
                raise CommandError(
                    f"{in_the_way}. It was tried {tries} times; what was done before it stays done. Stop what is in "
                    "the way, and run this again"
                )
            self.stderr.write(f"{in_the_way}; it is tried again in {pause_s:.0f} s, {left} more times")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _holders(self, database: str) -> str:
        """Return the transactions that have been open the longest."""
        with connections[database].cursor() as cursor:
            cursor.execute(
                "SELECT coalesce(nullif(application_name, ''), 'a program without a name'), pid, "
                "extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL "
                "ORDER BY xact_start LIMIT 3"
            )
            found = [f"{name} for {age} s (process {pid} of the server)" for name, pid, age in cursor.fetchall()]
        return f"open the longest: {', '.join(found)}" if found else "nobody is in the way any more"
