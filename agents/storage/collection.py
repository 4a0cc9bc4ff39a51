"""Garbage collection of the agent's caches: bundles, images as files, inputs and outputs.

Every hour, items over the age limit are removed, then the least recently used until the rest fits. Items used by parts
with a run folder stay, whatever their age. Ages use a clock that is never set: a jump of the host's clock removes
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.decode import setting
from agents.storage.content_store import ContentStore
from agents.storage.last_use import age_s, used_now

log = logging.getLogger("switchyard.agent")

EVERY_S: Final = 3600.0
# A file that was just requested may not be open yet.
FRESH_S: Final = 600.0
BUNDLE_SHARE: Final = 0.05
BUNDLE_BYTES: Final = 20 << 30
DAYS: Final = 30


@dataclass(frozen=True)
class CacheLimits:
    """The size limits of bundles and images, and the age limit of everything; 0 is no limit of age."""

    most_bytes: int
    most_age_s: float

    @staticmethod
    def of_host(folder: Path) -> CacheLimits:
        """Return YARD_AGENT_BUNDLE_BYTES, else a twentieth of the disk and 20 GiB at most; YARD_AGENT_CACHE_DAYS, else
        30."""
        usual = min(BUNDLE_BYTES, int(shutil.disk_usage(folder).total * BUNDLE_SHARE))
        return CacheLimits(setting("YARD_AGENT_BUNDLE_BYTES", usual), setting("YARD_AGENT_CACHE_DAYS", DAYS) * 86_400.0)


def collect_files(folder: Path, limits: CacheLimits, used: Collection[str]) -> list[str]:
    """Remove files of one folder, oldest use first; return their names. Blocks. ``used`` are names that stay."""
    kept: list[tuple[float, int, str]] = []
    with os.scandir(folder) as listed:
        for entry in listed:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                kept.append((status.st_mtime, status.st_size, entry.name))
    total = sum(size for _, size, _ in kept)
    gone = []
    for at, size, name in sorted(kept):
        if name in used or age_s(at) < FRESH_S:
            continue
        if total > limits.most_bytes or 0 < limits.most_age_s < age_s(at):
            (folder / name).unlink(missing_ok=True)
            total -= size
            gone.append(name)
    return gone


class Collector:
    """The caches of one node. ``images`` returns the names of files that live parts run from."""

    def __init__(self, bundles: Path, store: ContentStore, limits: CacheLimits, images: Callable[[], set[str]]) -> None:
        self.bundles, self.store, self.limits, self.images = bundles, store, limits, images

    def collect(self) -> list[str]:
        """Collect once; return what was removed. Blocks."""
        images = self.images()
        for name in images:
            with contextlib.suppress(OSError):
                used_now(self.bundles / name)
        gone = collect_files(self.bundles, self.limits, images)
        if self.limits.most_age_s:
            gone += self.store.expire(self.limits.most_age_s)
        return gone

    async def run(self) -> None:
        """Collect for ever, off the loop."""
        while True:
            if gone := await asyncio.to_thread(self.collect):
                log.info("collected what nobody used for long: %d files and folders", len(gone))
            await asyncio.sleep(EVERY_S)
