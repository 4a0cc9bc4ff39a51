"""Renews the lease of a node's parts: by an answer to one of its own reports, and as of when that report was sent.

The server counts from when it stored the report, which is later: so no part outlives the server's count.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agents.supervisor.lease import SINCE, noted

log = logging.getLogger("switchyard.agent")

MOST_UNANSWERED = 1024


class Renewal:
    """The lease of one node, kept in the file ``path``. Times are of CLOCK_BOOTTIME.

    ``renewed_at`` is when the newest answered report was sent, ``since`` when the unbroken chain of renewals began; an
    agent that starts again goes on with those of the one before, unless the machine was started anew in between.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self.boot_id = boot_id
        self.renewed_at, self.since, boot = noted(str(path))
        if boot != boot_id:
            self.renewed_at, self.since = 0.0, float("inf")
        self._sent: dict[int, float] = {}

    def connect(self) -> None:
        """Begin a connection: what was sent over the one before is not answered any more."""
        self._sent.clear()

    def sent(self, seq: int, at: float) -> None:
        """Remember when a report was sent. Of very many unanswered ones the oldest are forgotten: they never renew."""
        self._sent[seq] = at
        if len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]

    def answered(self, seq: int | None, lease_s: float, now: float) -> bool:
        """Renew the lease by an answer to report ``seq`` of this connection; tells whether it was one.

        0 is no answer to any report, and renews nothing. None is a control plane that does not say what it answers:
        its every message counts as an answer to the newest report, as agents counted before there was ``answers_seq``.
        """
        if seq is None:
            seq = next(reversed(self._sent), 0)
        at = self._sent.get(seq)
        if at is None:
            return False
        for one in [one for one in self._sent if one < seq]:
            del self._sent[one]
        if at > self.renewed_at:
            # Judged by now, not by when the report was sent: an answer that comes late finds the lease ended.
            is_broken = self.is_over(lease_s, now)
            self._note(at, now if is_broken else self.since)
        return True

    def is_over(self, lease_s: float, now: float) -> bool:
        """Whether a lease of this length, renewed as it was, has ended."""
        return self.since == float("inf") or now >= self.renewed_at + lease_s

    def until(self, lease_s: float) -> float:
        """When a lease ends that begins now: it counts from the newest answered report."""
        return self.renewed_at + lease_s

    def _note(self, at: float, since: float) -> None:
        """The beginning of a new chain is written first: whoever reads in between finds the lease ended, as it was."""
        try:
            if since != self.since:
                _replace(self.path.with_name(self.path.name + SINCE), f"{since:.3f} {self.boot_id}")
                self.since = since
            _replace(self.path, f"{at:.3f}")
            self.renewed_at = at
        except OSError as error:
            log.warning("the lease could not be noted: %s", error)


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    os.rename(draft, path)
