"""Pilots as processes of the host on which the worker runs: for a laptop, and for trying providers out.

Stages run as the user of the worker there, who can read what the control plane can: so an administrator must allow this
kind by ``YARD_PROVIDER_KINDS``. Each pilot has a folder with its label as name, which is made before its process is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from controlplane.providers import programs, script, typed
from controlplane.providers.engine import LABEL, EngineFault, EngineRefused, ForeignPhase, ForeignPilot, PilotOrder

SETTINGS: Final[Mapping[str, typed.Check]] = {**script.SETTINGS, "most": typed.is_whole(1, 1_000)}
NEEDED: Final = ()
SHAPE: Final[Mapping[str, typed.Check]] = {}
# A folder whose process has not begun after so long will have none.
BEGIN_S: Final = 10.0
KEPT_S: Final = 3_600.0
# In a session of its own, and no child of the worker, which would have to wait for it.
_APART: Final = 'setsid "$@" &'


class LocalHost:
    """This host."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.folder = Path(settings.HOME) / "pilots"

    def up(self, order: PilotOrder) -> str:
        place = self.folder / order.label
        try:
            self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            place.mkdir(mode=0o711)
            (place / "script").write_text(script.of(order, {**self.given, "state_below": str(place)}))
            with (place / "log").open("wb") as log:
                lasts_s = f"{order.hours * 3600:.0f}"
                words = ["timeout", "--foreground", "--kill-after=60", lasts_s, "sh", str(place / "script")]
                subprocess.run(
                    ["/bin/sh", "-c", _APART, "sh", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=programs.environment({script.TOKEN: order.token}),
                    check=False,
                )
        except FileExistsError:
            raise EngineFault("AskedBefore", order.label) from None
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise EngineRefused("ProgramMissing", str(error)) from None
        (place / "ends").write_text(f"{time.time() + order.hours * 3600:.0f}")
        return order.label

    def down(self, handles: Sequence[str], *, force: bool = False) -> None:
        for label in handles:
            for pid in _processes(str(self.folder / label / "script")):
                with contextlib.suppress(ProcessLookupError):
                    if force:
                        os.killpg(pid, signal.SIGKILL)
                    else:
                        os.kill(pid, signal.SIGTERM)

    def list(self, tag: str) -> list[ForeignPilot]:
        found = []
        for place in self.folder.glob(f"yard-{tag}-*"):
            if not LABEL.fullmatch(place.name):
                continue
            age_s = time.time() - place.stat().st_mtime
            if list(_processes(str(place / "script"))):
                found.append(ForeignPilot(place.name, place.name, ForeignPhase.RUNNING, _ends_at(place)))
            elif age_s < BEGIN_S:
                found.append(ForeignPilot(place.name, place.name, ForeignPhase.QUEUED))
            elif age_s < KEPT_S:
                found.append(ForeignPilot(place.name, place.name, ForeignPhase.ENDED))
            else:
                shutil.rmtree(place, ignore_errors=True)
        return found

    def price(self, shape: Mapping[str, Any]) -> float:
        return float(shape.get("price", 0.0))

    def limits(self) -> int | None:
        most: int | None = self.given.get("most")
        return most


def _ends_at(place: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float((place / "ends").read_text())
    return None


def _processes(file: str) -> Iterator[int]:
    """Yield the process that leads the session of this script, if it is alive."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if words[:1] == [b"timeout"] and file.encode() in words:
                yield int(entry.name)


def engine(given: Mapping[str, Any]) -> LocalHost:
    return LocalHost(given)
