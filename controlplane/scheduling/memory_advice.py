"""Advises on requested host and device memory, from the peaks of finished stages that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.db import connection

from controlplane.fleet.world import parsed
from scheduler.predict.finished import Asked, Finished
from scheduler.predict.memory import MemoryAdvice, Peaks

REREAD_S: Final = 30.0
# Rows are read again for this long, because a row may become visible after later ones.
OVERLAP_S: Final = 120.0
RECORDS: Final = 2_000

# The newest that completed, and the newest that ran out of memory, in order of time.
_PEAKS = """
SELECT a.id::text, p.name, u.username, j.name, s.name, s.kind, s.request, extract(epoch FROM a.ended_at)::float8,
       a.cause = 'OUT_OF_MEMORY',
       (SELECT max((t.exit->>'peak_memory_bytes')::bigint) FROM jobs_part t WHERE t.attempt_id = a.id),
       (SELECT jsonb_object_agg(k.kind, k.peak) FROM (
            SELECT d.key AS kind, max(d.value::bigint) AS peak
            FROM jobs_part t, jsonb_each_text(t.exit->'device_peak_bytes') d WHERE t.attempt_id = a.id GROUP BY d.key
        ) k)
FROM ((SELECT t.id FROM jobs_stage s JOIN jobs_attempt t ON t.stage_id = s.id AND t.number = s.attempt_count
       WHERE s.state = 'COMPLETED' AND s.ended_at > to_timestamp(%(since)s) ORDER BY s.ended_at DESC LIMIT %(most)s)
      UNION ALL
      (SELECT id FROM jobs_attempt WHERE cause = 'OUT_OF_MEMORY' AND ended_at > to_timestamp(%(since)s)
       ORDER BY ended_at DESC LIMIT %(most)s)) f
     JOIN jobs_attempt a ON a.id = f.id JOIN jobs_stage s ON s.id = a.stage_id JOIN jobs_job j ON j.id = s.job_id
     JOIN access_project p ON p.id = j.project_id JOIN access_user u ON u.id = j.user_id
ORDER BY a.ended_at, a.id
"""


class MemoryPeaks:
    """Caches measured peaks and rereads them every :data:`REREAD_S`. Keep one per process."""

    def __init__(self) -> None:
        self._peaks = Peaks()
        self._of_devices: dict[str, Peaks] = defaultdict(Peaks)
        self._seen: dict[str, float] = {}
        self._newest_at = 0.0
        self._read_at = float("-inf")

    def advise(self, asked: Asked, request: Mapping[str, Any], now: float) -> MemoryAdvice | None:
        """Return advice on the host memory that a stage requests; ``None`` if too few alike stages were measured."""
        self._refresh(now)
        return self._peaks.advise(asked, request["memory_bytes"])

    def advise_on_device(self, asked: Asked, kind: str, asked_bytes: int, now: float) -> MemoryAdvice | None:
        """Return advice on the memory that a stage requests or holds on each device of this kind."""
        self._refresh(now)
        return self._of_devices[kind].advise(asked, asked_bytes) if kind in self._of_devices else None

    def _refresh(self, now: float) -> None:
        if now - self._read_at > REREAD_S:
            self._read_at = now
            self._read()

    def _read(self) -> None:
        since = self._newest_at - OVERLAP_S
        with connection.cursor() as cursor:
            cursor.execute(_PEAKS, {"since": since, "most": RECORDS})
            rows = cursor.fetchall()
        for attempt, project, user, job, stage, kind, request, ended_at, ran_out, peak, on_devices in rows:
            self._newest_at = max(self._newest_at, ended_at)
            if attempt in self._seen:
                continue
            self._seen[attempt] = ended_at
            one = Finished(
                project=project,
                name=f"{job}/{stage}",
                kind=kind,
                ran_s=0.0,
                user=user,
                ended_at=ended_at,
                peak_bytes=peak or 0,
                asked_bytes=parsed(request)["memory_bytes"],
                out_of_memory=ran_out,
            )
            self._peaks.learn(one)
            for device_kind, device_peak in (parsed(on_devices) or {}).items() if not ran_out else ():
                self._of_devices[device_kind].learn(replace(one, peak_bytes=device_peak, asked_bytes=0))
        self._seen = {attempt: at for attempt, at in self._seen.items() if at > self._newest_at - 2 * OVERLAP_S}
