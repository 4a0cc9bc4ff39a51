"""How a test with transactions of its own leaves the database: all tables empty but those that Django fills itself.

Django would truncate each table, full or not, which makes new files for it and all its indices, and then look up and
make all content types and permissions again: most of what such a test costs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import TransactionTestCase


@cache
def _statements() -> str:
    kept = {ContentType._meta.db_table, Permission._meta.db_table}
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    tables = [f'"{name}"' for name in sorted(found) if name not in kept]
    # Whoever still writes is waited for, as by TRUNCATE.
    return ";".join([f"LOCK TABLE {', '.join(tables)}", *(f"DELETE FROM {name}" for name in tables)])


def empty_tables() -> None:
    """Delete all rows. What guards them, foreign keys as well as triggers, is off meanwhile."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(_statements())


def instead_of_flush() -> None:
    """Let tests with transactions of their own end so."""

    def emptied(_case: Any) -> None:
        empty_tables()

    TransactionTestCase._fixture_teardown = emptied  # type: ignore[method-assign]
