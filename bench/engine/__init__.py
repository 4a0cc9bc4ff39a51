"""The engine on public traces and at full size: one module per experiment, each with its ``KEYS`` and its ``measure``.

The traces are not part of this project; ``YARD_TRACES`` names the folder that holds them (docs/engine says where each
comes from). ``--only`` chooses rows by a key, its beginning, or the name of an experiment.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from bench.figures import Figures


def experiments() -> dict[str, ModuleType]:
    """The modules of this folder that measure something, by name."""
    found = {}
    for one in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        module = importlib.import_module(f"{__name__}.{one.name}")
        if hasattr(module, "KEYS") and hasattr(module, "measure"):
            found[one.name] = module
    return found


def measure(only: Sequence[str] = ()) -> Figures:
    """Run the chosen experiments one after another. Raises ``SystemExit`` with a sentence for what cannot be run."""
    known = experiments()
    unknown = [word for word in only if not any(_means(word, name, module.KEYS) for name, module in known.items())]
    if unknown:
        keys = ", ".join(f"{name} ({', '.join(module.KEYS)})" for name, module in known.items())
        raise SystemExit(f'no row is called "{unknown[0]}"; there are {keys}')
    values: dict[str, float] = {}
    remarks = []
    for name, module in known.items():
        if only and not any(_means(word, name, module.KEYS) for word in only):
            continue
        began, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        wanted = [key for key in module.KEYS if not only or name in only or any(key.startswith(word) for word in only)]
        some = (wanted,) if getattr(module, "BY_KEY", False) else ()
        found: Mapping[str, float] = module.measure(_traces(module), _progress(name), *some)
        print(flush=True)
        values.update({key: value for key, value in found.items() if key in wanted})
        spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu
        remarks.append(f"{name}: {time.monotonic() - began:.0f} s of wall time, {spent:.0f} s of one core")
    return Figures(dict(values), remarks)


def _means(word: str, name: str, keys: Sequence[str]) -> bool:
    return word == name or any(key.startswith(word) for key in keys)


def _traces(module: ModuleType) -> Path:
    """The folder of traces, where the experiment needs one."""
    if getattr(module, "NEEDS_NO_TRACES", False):
        return Path()
    named = os.environ.get("YARD_TRACES")
    if not named or not Path(named).is_dir():
        raise SystemExit(
            f"{module.__name__} reads public traces from the folder named in YARD_TRACES, which is "
            f"{'not a folder: ' + named if named else 'not set'}; docs/engine says where they come from"
        )
    return Path(named)


def _progress(name: str) -> Callable[[int, int], None]:
    last = [0.0]

    def show(done: int, total: int) -> None:
        if time.monotonic() - last[0] >= 5 or done == total:
            last[0] = time.monotonic()
            print(f"\r  {name}: {done} of {total}", end="", flush=True)

    return show
