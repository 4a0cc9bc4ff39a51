"""Templates of inference engines, one YAML file each: command, health path, names of metrics, and whether it was tried.

In ``run``, ``{{model}}``, ``{{name}}`` and ``{{arguments}}`` are replaced; the first two are quoted for the shell. The
port and the key are variables of the replica: ``$PORT`` and ``$SERVICE_API_KEY``, and so is the place of a promoted
model: ``$SERVICE_MODEL``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """One engine. ``metrics`` maps our names to those of the engine, of which the first that is there counts; ``room``
    may be the product of two labels (``router.load``)."""

    name: str
    title: str
    run: str
    health: str
    tried: bool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, list[str]] = field(default_factory=dict)

    def job(self, given: Mapping[str, Any], model: str, name: str, arguments: str) -> dict[str, Any]:
        """Return the job file of a replica: the engine's defaults, what the file gives, the engine's command."""
        place = f'"{model}"' if model == PROMOTED else shlex.quote(model)
        words = {"{{model}}": place, "{{name}}": shlex.quote(name), "{{arguments}}": arguments}
        run = self.run
        for word, value in words.items():
            run = run.replace(word, value)
        own = {} if "run" in given or "command" in given else {"run": run}
        return {**self.defaults, **given, **own}


# The model that was promoted to a service, where the script of a replica finds it.
PROMOTED: Final = "$SERVICE_MODEL"
# What the router reads of a replica's metrics.
SIGNALS: Final = ("running", "waiting", "cache", "room")


def signals_of(file: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the router reads of the replicas of this service file, by our names; empty without an engine."""
    engine = all_engines().get(str(file.get("engine") or ""))
    return {name: engine.metrics[name] for name in SIGNALS if name in engine.metrics} if engine else {}


@cache
def all_engines() -> Mapping[str, ServingEngine]:
    """Return the engines by their names."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        found[path.stem] = ServingEngine(name=path.stem, **yaml.safe_load(path.read_text()))
    return found
