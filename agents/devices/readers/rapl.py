"""The power of CPU packages, from the kernel's energy counters (RAPL). Often only root may read them.

Source: Linux, Documentation/power/powercap/powercap.rst; the same files exist for Intel and AMD.
"""

from __future__ import annotations

import time
from pathlib import Path


class Rapl:
    """Counters of whole packages; each call of ``watts`` returns the mean since the previous call."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._counters: dict[int, tuple[Path, int]] = {}
        for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:[0-9]*")):
            name = file_text(folder / "name")
            package = name.removeprefix("package-")
            if folder.name.count(":") == 1 and name != package and package.isdigit():
                wrap = file_text(folder / "max_energy_range_uj")
                self._counters[int(package)] = (folder / "energy_uj", int(wrap) if wrap.isdigit() else 0)
        self._before: dict[int, tuple[float, int]] = {}

    def watts(self) -> dict[int, float]:
        """Return watts by package; a package whose counter may not be read, or was not read before, is absent."""
        found = {}
        for package, (file, wrap) in self._counters.items():
            text = file_text(file)
            if not text.isdigit():
                continue
            now, microjoules = time.monotonic(), int(text)
            before = self._before.get(package)
            self._before[package] = (now, microjoules)
            if before is None or now <= before[0]:
                continue
            spent = microjoules - before[1]
            if spent < 0:
                spent += wrap  # the counter has wrapped
            if spent >= 0:
                found[package] = spent / 1e6 / (now - before[0])
        return found


def file_text(path: Path) -> str:
    """Return the content of a file of the kernel, stripped; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
