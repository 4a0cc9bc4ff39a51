"""The request of a simulation, read from a mapping (YAML or JSON) and checked before anything runs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from scheduler import profiles
from scheduler.core.model.clauses import clause
from scheduler.core.model.kinds import is_accelerator
from scheduler.core.model.profile import Profile
from scheduler.core.model.sentences import _, said
from scheduler.core.model.types import Node
from scheduler.scenario import arrivals
from scheduler.sim.cluster import cluster
from scheduler.sim.traces import FORMATS, Arrival, Trace, generic, history, swf
from scheduler.sim.traces import read as read_trace
from scheduler.sim.world import Chance

KEYS: Final = ("name", "trace", "world", "profiles", "loads", "seeds")
WORLD_KEYS: Final = ("nodes", "cores", "error", "mtbf_h", "checkpoint_s", "saves_on_stop", "every_s", "weights")
TRACE_KEYS: Final = ("file", "format", "text", "generate", "first")
LONGEST_NAME: Final = 100
LONGEST_LINE: Final = 20_000
MOST_WEIGHTS: Final = 1_000
# From the first submission to the last one, under the least load.
LONGEST_S: Final = 100 * 366 * 86_400.0


class ScenarioError(ValueError):
    """Raised with the place in the scenario and what would be accepted there."""

    def __init__(self, at: str, problem: str) -> None:
        self.at, self.said, self.problem = at[:100], problem, shortened(problem)
        super().__init__(f"{self.at}: {self.problem}" if at else self.problem)


def shortened(problem: str) -> str:
    """Return the problem, cut if a value in it makes it too long."""
    return str(problem) if len(problem) <= 500 else f"{problem[:500]}..."


@dataclass(frozen=True, slots=True)
class ScenarioLimits:
    """The limits of a scenario; the command line has none. ``lines`` are those of a trace sent as text, which are read
    before ``trace.first`` chooses among them."""

    arrivals: float = math.inf
    lines: float = math.inf
    devices: float = math.inf
    cells: float = math.inf


@dataclass(frozen=True, slots=True)
class Cell:
    """One world to simulate: a profile under a load with a seed."""

    profile: str
    load: float
    seed: int


@dataclass(frozen=True)
class Scenario:
    """A checked scenario. With a load of 1.2 everything arrives in 1/1.2 of the time."""

    name: str
    trace: Trace
    nodes: tuple[Node, ...]
    profiles: Mapping[str, Profile]
    loads: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0,)
    chance: Chance = field(default_factory=Chance)
    every_s: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> list[Cell]:
        """Return the worlds; loads outermost, then profiles, then seeds, so that compared ones run one after the
        other."""
        return [Cell(name, load, seed) for load in self.loads for name in self.profiles for seed in self.seeds]

    @property
    def devices(self) -> int:
        return sum(is_accelerator(device.kind) for node in self.nodes for device in node.devices)


def read(path: Path) -> Scenario:
    """Read the scenario of a YAML file; its traces are relative to the file."""
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError("", _("{name} is not YAML: {reason}").format(name=path.name, reason=error)) from None
    return build(body, beside=path.parent)


def build(body: Any, *, limits: ScenarioLimits | None = None, beside: Path | None = None) -> Scenario:
    """Build the scenario of a mapping. ``beside`` is the folder for files; without it none may be named.

    Raises :class:`ScenarioError` if it is invalid or larger than ``limits``.
    """
    limits = limits or ScenarioLimits()
    asked = _mapping(body, "", KEYS)
    world = _mapping(asked.get("world") or {}, "world", WORLD_KEYS)
    name = _name(asked)
    # Sizes are computed before anything is made, so that a refused scenario costs little.
    count = math.prod(_count(asked.get(key)) for key in ("profiles", "loads", "seeds"))
    if count > limits.cells:
        problem = _("profiles x loads x seeds are {count} worlds; at most {most:.0f}")
        raise ScenarioError("profiles", problem.format(count=count, most=limits.cells))
    chosen = _profiles(asked.get("profiles") or [profiles.DEFAULT])
    loads = tuple(_numbers(asked.get("loads", [1.0]), "loads", 0.01, 100.0))
    seeds = tuple(int(seed) for seed in _numbers(asked.get("seeds", [0]), "seeds", 0, 2**31))
    cores = int(_number(world, "world", "cores", 1, 4096, 128))
    try:
        nodes = cluster(str(world.get("nodes", "8x8")), cores, limits.devices)
    except ValueError as error:
        raise ScenarioError("world.nodes", said(error)) from None
    trace = _trace(asked.get("trace") or {"generate": {}}, beside, limits)
    _check_times(trace, min(loads))
    weights = _mapping(world.get("weights") or {}, "world.weights", None)
    if len(weights) > MOST_WEIGHTS:
        problem = _("names {count:,} projects; at most {most:,}").format(count=len(weights), most=MOST_WEIGHTS)
        raise ScenarioError("world.weights", problem)
    return Scenario(
        name=name,
        trace=trace,
        nodes=nodes,
        profiles=chosen,
        loads=loads,
        seeds=seeds,
        chance=Chance(
            error=_number(world, "world", "error", 0, 5, 0.0),
            node_mtbf_s=_number(world, "world", "mtbf_h", 0, 1e6, 0.0) * 3600,
            checkpoint_s=_number(world, "world", "checkpoint_s", 0, 1e7, 0.0),
            saves_on_stop=_flag(world, "world", "saves_on_stop"),
        ),
        every_s=_number(world, "world", "every_s", 0, 86_400, 0.0),
        weights={str(name): _number(weights, "world.weights", name, 0.001, 1e6, 1.0) for name in weights},
        asked=asked,
    )


def _name(asked: Mapping[str, Any]) -> str:
    name = asked.get("name") or "simulation"
    if not isinstance(name, str | int | float) or len(text := str(name)) > LONGEST_NAME or not text.isprintable():
        raise ScenarioError(
            "name", _("must be a text of at most {most} printable characters").format(most=LONGEST_NAME)
        )
    return text


def _count(value: Any) -> int:
    """Return the number of profiles, loads or seeds."""
    if isinstance(value, str):
        return len(set(value.split(",")))
    return max(1, len(value)) if isinstance(value, list | Mapping) else 1


def _check_times(trace: Trace, load: float) -> None:
    """Raise for times beyond the calendar."""
    longest = max(one.duration_s for one in trace.arrivals)
    if longest > generic.YEARS_S:
        problem = _("a stage lasts {longest:g} seconds; at most {most:g}, ten years")
        raise ScenarioError("trace", problem.format(longest=longest, most=generic.YEARS_S))
    span_s = (trace.arrivals[-1].submit_s - trace.arrivals[0].submit_s) / load
    if span_s > LONGEST_S:
        problem = _("spans {span_s:g} seconds under the least load; at most {most:g}, a century")
        raise ScenarioError("trace", problem.format(span_s=span_s, most=LONGEST_S))


def scaled(found: Sequence[Arrival], load: float) -> list[Arrival]:
    """Return the arrivals with the time between them divided by ``load``."""
    return [replace(one, submit_s=one.submit_s / load) for one in found]


def _profiles(body: Any) -> dict[str, Profile]:
    """Return profiles by name, or given as data under a name of their own."""
    try:
        if isinstance(body, str):
            body = [name.strip() for name in body.split(",")]
        if isinstance(body, list):
            named = {name: profiles.named(name) for name in map(_profile_name, body)}
        elif isinstance(body, Mapping):
            named = {_profile_name(name): profiles.load(str(name), spec or {}) for name, spec in body.items()}
        else:
            raise ValueError(_("must be a list of names, or a mapping of names to profiles"))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ScenarioError("profiles", said(error)) from None
    if not named:
        raise ScenarioError("profiles", _("is empty; there are {all}").format(all=", ".join(profiles.PROFILES)))
    return named


def _profile_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        raise ValueError(_("a profile's name must be a text of at most {most} characters").format(most=LONGEST_NAME))
    return name


def _trace(body: Any, beside: Path | None, limits: ScenarioLimits) -> Trace:
    asked = _mapping(body, "trace", TRACE_KEYS)
    form = str(asked.get("format", "auto"))
    if form not in ("auto", *FORMATS):
        problem = _("there is no format {name!r}; there are auto, {all}").format(name=form, all=", ".join(FORMATS))
        raise ScenarioError("trace.format", problem)
    sources = [name for name in ("file", "text", "generate") if asked.get(name) is not None]
    if len(sources) != 1:
        raise ScenarioError("trace", _("must have one of file, text and generate"))
    try:
        if sources == ["generate"]:
            found = arrivals.generate(_mapping(asked["generate"], "trace.generate", arrivals.KEYS), limits.arrivals)
        elif sources == ["text"]:
            found = _of_text(asked["text"], form, limits.lines)
        elif beside is None:
            raise ScenarioError("trace.file", _("no file may be named here; send the trace itself as text"))
        else:
            found = read_trace(beside / str(asked["file"]), form)
    except ScenarioError:
        raise
    except (ValueError, OverflowError, OSError) as error:
        raise ScenarioError("trace", said(error)) from None
    if asked.get("first"):
        most = int(_number(asked, "trace", "first", 1, 1e9, 1))
        first = (clause("FirstOfTrace", count=most),)
        found = Trace(found.arrivals[:most], (*found.said, first), found.left_out)
    if not len(found):
        raise ScenarioError("trace", _("holds no stage that can run"))
    if len(found) > limits.arrivals:
        problem = _("holds {count:,} stages; at most {most:,.0f}: set trace.first to take the first ones")
        raise ScenarioError("trace", problem.format(count=len(found), most=limits.arrivals))
    return found


def _of_text(text: Any, form: str, most: float) -> Trace:
    """Read a trace that was sent as text: its first line tells the format."""
    if not isinstance(text, str):
        raise ScenarioError("trace.text", _("must be a text: the lines of a trace"))
    lines = _bounded(io.StringIO(text), most)
    first = text[:LONGEST_LINE].partition("\n")[0]
    if form == "auto":
        form = "swf" if first.startswith(";") else "history" if '"submitted_at"' in first else "generic"
    readers = {"generic": generic.read, "history": history.read, "swf": swf.read}
    if form not in readers:
        raise ScenarioError("trace.format", _("a trace sent as text is one of {all}").format(all=", ".join(readers)))
    return readers[form](lines)


def _bounded(lines: Iterable[str], most: float) -> Iterator[str]:
    """Yield the lines, up to the limits of length and number."""
    for number, line in enumerate(lines, 1):
        if number > most:
            raise ScenarioError("trace.text", _("has more than {most:,.0f} lines").format(most=most))
        if len(line) > LONGEST_LINE:
            problem = _("line {line} is longer than {most:,} characters").format(line=number, most=LONGEST_LINE)
            raise ScenarioError("trace.text", problem)
        yield line


def _mapping(value: Any, at: str, keys: Sequence[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        problem = _("must be a mapping with {keys}").format(keys=", ".join(keys)) if keys else _("must be a mapping")
        raise ScenarioError(at, problem)
    for key in value:
        if keys is not None and key not in keys:
            problem = _("there is no such key; there are {all}").format(all=", ".join(keys))
            raise ScenarioError(f"{at}.{key}".strip("."), problem)
    return value


def _number(body: Mapping[str, Any], at: str, key: str, least: float, most: float, default: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        problem = _("must be a number from {least:g} to {most:g}, not {value!r}")
        raise ScenarioError(f"{at}.{key}".strip("."), problem.format(least=least, most=most, value=value))
    return float(value)


def _flag(body: Mapping[str, Any], at: str, key: str) -> bool:
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise ScenarioError(f"{at}.{key}", _("must be true or false, not {value!r}").format(value=value))
    return value


def _numbers(value: Any, at: str, least: float, most: float) -> list[float]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ScenarioError(at, _("is empty"))
    return list(dict.fromkeys(_number({"": one}, at, "", least, most, 1.0) for one in values))
