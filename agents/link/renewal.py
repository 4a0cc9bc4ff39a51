"""Renews the lease of a node's parts when a report is answered, counting from the time when that report was sent.

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
    """The lease of one node, stored in the file ``path``. Times are of CLOCK_BOOTTIME.

    ``renewed_at`` is when the newest answered report was sent, ``since`` when the unbroken chain of renewals began; a
    restarted agent continues with the stored values, unless the machine was rebooted in between.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self.path = path
        self.boot_id = boot_id
        self.renewed_at, self.since, boot = noted(str(path))
        if boot != boot_id:
            self.renewed_at, self.since = 0.0, float("inf")
        self._sent: dict[int, float] = {}

    def connect(self) -> None:
        """Begin a connection: reports sent over the former one are not answered any more."""
        self._sent.clear()

    def sent(self, seq: int, at: float) -> None:
        """Remember when a report was sent. If very many are unanswered, the oldest are forgotten and never renew."""
        self._sent[seq] = at
        if len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]

    def answered(self, seq: int | None, lease_s: float, now: float) -> bool:
        """Renew the lease by an answer to report ``seq`` of this connection; return whether it was one.

        0 answers no report, and renews nothing. None is sent by a control plane without ``answers_seq``: each of its
        messages counts as an answer to the newest report, as agents counted before this field existed.
        """
        if seq is None:
            seq = next(reversed(self._sent), 0)
        at = self._sent.get(seq)
        if at is None:
            return False
        for one in [one for one in self._sent if one < seq]:
            del self._sent[one]
        if at > self.renewed_at:
            # Compared with now, not with the time of the report: the lease has ended before a late answer arrives.
            is_broken = self.is_over(lease_s, now)
            self._note(at, now if is_broken else self.since)
        return True

    def is_over(self, lease_s: float, now: float) -> bool:
        """Whether a lease of this length has ended, given its renewals."""
        return self.since == float("inf") or now >= self.renewed_at + lease_s

    def until(self, lease_s: float) -> float:
        """Return when a lease ends that begins now; it counts from the newest answered report."""
        return self.renewed_at + lease_s

    def _note(self, at: float, since: float) -> None:
        """Store the times, the beginning of a new chain first.

        A reader in between therefore still finds the lease ended.
        """
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
