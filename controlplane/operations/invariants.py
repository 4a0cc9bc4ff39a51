"""Invariants of the database, each as a query that returns the rows that violate it.

Checked after every test, every minute in production, and by ``manage.py check_invariants``. A violation is a bug: it
raises an alarm for operators and stops nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db import OperationalError, connection, transaction

from controlplane.clauses import Told, clause, told


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant. ``query`` returns the violating rows; the first column of each identifies it. ``code`` is that of
    the clause that says what holds."""

    id: str
    code: str
    query: str

    def broken_by(self, rows: Sequence[str]) -> Told:
        """Return what to say of the rows that violate it."""
        return told(clause("Broken", rule=told(clause(self.code)), rows=", ".join(rows)))


INVARIANTS: Final = (
    Invariant(
        "I1",
        "OneLiveAttempt",
        """SELECT s.id::text || ' is ' || s.state FROM jobs_stage s
           LEFT JOIN jobs_attempt a ON a.stage_id = s.id AND a.ended_at IS NULL
           GROUP BY s.id HAVING count(a.id) <> CASE WHEN s.state IN ('STARTING', 'RUNNING', 'STOPPING', 'SUSPENDED')
                                                    THEN 1 ELSE 0 END""",
    ),
    Invariant(
        "I2",
        "ClaimsAddUp",
        """SELECT d.uuid FROM fleet_device d LEFT JOIN jobs_claim c ON c.device_id = d.id AND c.closed_at IS NULL
           GROUP BY d.id HAVING coalesce(sum(c.milli), 0) <> d.claimed_milli
               OR coalesce(sum(c.memory_bytes), 0) <> d.claimed_memory_bytes
               OR d.claimed_milli > d.capacity_milli OR d.claimed_memory_bytes > d.memory_bytes""",
    ),
    Invariant(
        "I3",
        "OneFinalEvent",
        """SELECT '#' || j.number FROM jobs_job j
           WHERE j.state IN ('COMPLETED', 'FAILED', 'CANCELLED') AND (
               (SELECT count(*) FROM jobs_event e WHERE e.job_id = j.id AND e.stage = ''
                AND e.kind IN ('completed', 'failed', 'cancelled')) <> 1
               OR EXISTS (SELECT 1 FROM jobs_stage s WHERE s.job_id = j.id
                          AND s.state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED')))""",
    ),
    Invariant(
        "I4",
        "SpansFollow",
        """SELECT DISTINCT part_id::text || '.' || stream FROM (
               SELECT part_id, stream, "offset", start,
                   lag("offset" + size, 1, 0::bigint) OVER (PARTITION BY part_id, stream ORDER BY "offset") AS due,
                   lag(start + size, 1, 0::bigint) OVER (PARTITION BY part_id ORDER BY start) AS begins
               FROM jobs_logspan) s
           WHERE "offset" <> due OR start <> begins""",
    ),
    Invariant(
        "I9",
        "EndedHoldsNothing",
        """SELECT c.id::text FROM jobs_claim c JOIN jobs_part p ON p.id = c.part_id
           WHERE (c.closed_at IS NULL) <> (p.ended_at IS NULL)""",
    ),
    Invariant(
        "I10",
        "PartsEndAttempts",
        """SELECT a.id::text FROM jobs_attempt a JOIN jobs_part p ON p.attempt_id = a.id
           GROUP BY a.id HAVING bool_and(p.ended_at IS NOT NULL) <> (a.ended_at IS NOT NULL)""",
    ),
    Invariant(
        "I11",
        "NoEndBeforeBegin",
        """SELECT id::text FROM jobs_claim WHERE closed_at < opened_at
           UNION ALL SELECT id::text FROM jobs_attempt WHERE ended_at < created_at""",
    ),
    Invariant(
        "I12",
        "EventsNumbered",
        """SELECT '#' || j.number FROM jobs_job j LEFT JOIN jobs_event e ON e.job_id = j.id
           GROUP BY j.id HAVING count(e.id) <> j.event_seq - j.events_gone OR coalesce(max(e.seq), 0) <> j.event_seq""",
    ),
    Invariant(
        "I13",
        "SlotsOnce",
        """SELECT d.uuid FROM jobs_claim c JOIN jobs_claim o ON o.device_id = c.device_id AND o.id > c.id
           JOIN fleet_device d ON d.id = c.device_id
           WHERE c.closed_at IS NULL AND o.closed_at IS NULL AND c.slots && o.slots""",
    ),
)


# A check that takes longer is cancelled, to spare the database.
PATIENCE_S: Final = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """Violations by invariant id with the first violating rows, and invariants that could not be checked."""

    broken: dict[str, Told]
    unchecked: list[str]


def check() -> Checked:
    """Check all invariants, each with a statement timeout."""
    found = Checked({}, [])
    for invariant in INVARIANTS:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{PATIENCE_S}s"])
                cursor.execute(invariant.query)
                rows = [str(row[0]) for row in cursor.fetchmany(5)]
        except OperationalError as error:
            found.unchecked.append(f"{invariant.id}: {error}")
            continue
        if rows:
            found.broken[invariant.id] = invariant.broken_by(rows)
    return found


def broken() -> list[str]:
    """Return a sentence per violated or unchecked invariant; empty if all hold."""
    found = check()
    return [f"{name}: {says.text}" for name, says in found.broken.items()] + found.unchecked
