"""Parses ``array`` of a job file: the indexes of its elements, or the points of a sweep with their parameters.

What is written is counted before it is expanded, so that a sweep of a billion points costs no more than its refusal.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.jobs import curves
from controlplane.jobs.section import Section, step
from controlplane.jobs.values import Unacceptable, choice, shown, text, whole
from scheduler.core.model.halving import MOST_STEPS, Goal, Halving

MOST_ELEMENTS: Final = 10_000
MOST_PARAMETERS: Final = 32
MOST_VALUES: Final = 1_000
HIGHEST_INDEX: Final = 4_000_000
LONGEST_TEXT: Final = 200
ARRAY_KEYS: Final = ("indexes", "parameters", "max_parallel", "sample", "seed", "halving")
HALVING_KEYS: Final = ("metric", "goal", "min_steps", "reduction_factor", "rungs")
MOST_RUNGS: Final = 10
LARGEST_FACTOR: Final = 10
RANGES: Final = ("uniform", "log_uniform", "integers")
# With so many points of a grid a sample is drawn from a shuffled list of them; with more, repeated draws are rare.
SHUFFLED: Final = 100_000

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """The elements of an array: their indexes, ascending, and in a sweep the parameters of each.

    ``asked`` is what the file says. At most ``max_parallel`` elements run at once, if it is given. ``halving`` is the
    rule by which elements of a sweep are stopped early.
    """

    indexes: Sequence[int]
    parameters: Sequence[Mapping[str, Value]] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    max_parallel: int | None = None
    halving: Halving | None = None

    def __len__(self) -> int:
        return len(self.indexes)

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON for the dry run, with the first few elements."""
        few = min(len(self), 10)
        return {
            "count": len(self),
            "max_parallel": self.max_parallel,
            "parameters": self.asked.get("parameters") or {},
            "halving": {**asdict(self.halving), "steps": self.halving.steps()} if self.halving else None,
            "first": [
                {"index": index, "parameters": dict(self.parameters[at]) if self.parameters else {}}
                for at, index in enumerate(self.indexes[:few])
            ],
        }


def array(job: Section) -> ArrayPlan | None:
    """Read the job's ``array``; None without one, or if it has a fault."""
    if not job.has("array"):
        return None
    before = len(job.refusals)
    part = Section(job.values["array"], job.at("array"), job.refusals, ARRAY_KEYS)
    most = part.read("max_parallel", whole(1, MOST_ELEMENTS), 0) or None
    if part.has("indexes") and part.has("parameters"):
        detail = _("give indexes or parameters, not both: the points of a sweep are numbered from 0")
        part.refuse("indexes", detail, "exclusive")
    elif part.has("indexes"):
        for key in ("sample", "seed", "halving"):
            if part.has(key):
                part.refuse(key, _("{key} belongs to a sweep: it needs parameters").format(key=key), "exclusive")
        nothing: list[int] = []
        indexes = part.read("indexes", _indexes, nothing)
        if len(job.refusals) == before:
            return ArrayPlan(indexes, (), part.values, most)
    elif part.has("parameters"):
        points = _sweep(part)
        halving = _halving(part)
        if halving and points and len(points) < halving.reduction_factor:
            detail = _(
                "reduction_factor is {factor}, but there are only {total} points: nothing would ever be stopped early"
            )
            key = "/halving/reduction_factor"
            part.refuse(key, detail.format(factor=halving.reduction_factor, total=len(points)), "out_of_range")
        if len(job.refusals) == before:
            return ArrayPlan(range(len(points)), points, part.values, most, halving)
    elif len(job.refusals) == before:
        detail = _('say which elements: indexes such as "0-15", or parameters such as {example}')
        part.refuse("", detail.format(example="{lr: [0.1, 0.01], seed: [1, 2]}"), "missing")
    return None


def _halving(part: Section) -> Halving | None:
    """Read by which rule elements are stopped early; None without one, or if it has a fault."""
    if not part.has("halving"):
        return None
    before = len(part.refusals)
    rule = Section(part.values["halving"], part.at("halving"), part.refusals, HALVING_KEYS)
    if len(part.refusals) > before and not rule.values:
        return None
    metric = rule.read("metric", _metric, "")
    if not rule.has("metric"):
        rule.refuse("metric", _("metric is missing: the name of a number that every element reports"), "missing")
    goal = rule.read("goal", choice(*Goal), Goal.MINIMIZE.value)
    least = rule.read("min_steps", whole(1, MOST_STEPS), 0)
    if not rule.has("min_steps"):
        detail = _("min_steps is missing: the reported step at which elements are first compared")
        rule.refuse("min_steps", detail, "missing")
    factor = rule.read("reduction_factor", whole(2, LARGEST_FACTOR), 3)
    rungs = rule.read("rungs", whole(1, MOST_RUNGS), 4)
    if len(part.refusals) > before:
        return None
    found = Halving(metric, Goal(goal), least, factor, rungs)
    if (last := found.steps()[-1]) > MOST_STEPS:
        detail = _("the last of {rungs} rungs would be at step {last}, beyond {most}; use fewer rungs")
        rule.refuse("rungs", detail.format(rungs=rungs, last=last, most=MOST_STEPS), "out_of_range")
        return None
    return found


def _metric(value: object) -> str:
    name = text(curves.LONGEST_NAME)(value)
    if not name.isprintable():
        raise Unacceptable(_("must be a name of printable characters, not {value}").format(value=shown(value)))
    return name


def as_text(value: Value) -> str:
    """Return a parameter as an element finds it in its environment."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _indexes(value: object) -> list[int]:
    """Read indexes as Slurm writes them: ``0-15:2,20``."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and "%" in value:
        raise Unacceptable(_("must not have %: write how many run at once as max_parallel"))
    if not isinstance(value, str) or not value.strip() or len(value) > 100_000:
        raise Unacceptable(_('must be indexes such as "0-15:2,20", not {value}').format(value=shown(value)))
    found: set[int] = set()
    count = 0
    for word in value.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise Unacceptable(_('must be indexes such as "0-15:2,20", not {value}').format(value=shown(word)))
        low, high, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if low > high or stride < 1 or high > HIGHEST_INDEX:
            raise Unacceptable(
                _("must go up from 0 to {high} in steps of at least 1, not {value}").format(
                    high=HIGHEST_INDEX, value=shown(word)
                ),
                "out_of_range",
            )
        several = range(low, high + 1, stride)
        count += len(several)
        if count > MOST_ELEMENTS:
            raise Unacceptable(_most(count), "too_many")
        found.update(several)
    return sorted(found)


def _most(count: int) -> str:
    return _("may name at most {most:,} elements, not {count} or more").format(
        most=MOST_ELEMENTS, count=f"{count:,}" if count < 10**15 else f"10^{len(str(count)) - 1}"
    )


def _sweep(part: Section) -> list[dict[str, Value]]:
    """Return the points of a sweep; none if there is a fault."""
    before = len(part.refusals)
    sample = part.read("sample", whole(1, MOST_ELEMENTS), 0)
    seed = part.read("seed", whole(-(2**63), 2**63 - 1), 0)
    if part.has("seed") and not part.has("sample"):
        part.refuse("seed", _("seed chooses the points of a sample: say sample too"), "missing")
    given = part.values["parameters"]
    if not isinstance(given, dict) or not 1 <= len(given) <= MOST_PARAMETERS:
        detail = _("parameters must map 1 to {n} names to lists of values, or to ranges where there is a sample")
        part.refuse("parameters", detail.format(n=MOST_PARAMETERS), "not_a_mapping")
        return []
    axes: dict[str, _Axis] = {}
    variables: set[str] = set()
    for name, value in given.items():
        at = "/parameters" + step(name)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            detail = _("{name} cannot name a parameter: use up to 63 letters, digits and _, a letter first")
            part.refuse(at, detail.format(name=shown(name)), "invalid_name")
            continue
        if name.upper() in variables:
            detail = _("two parameters would be YARD_PARAM_{name}; names must differ in more than capitals")
            part.refuse(at, detail.format(name=name.upper()), "duplicate")
        variables.add(name.upper())
        try:
            axes[name] = _axis(value, is_sampled=part.has("sample"))
        except Unacceptable as error:
            part.refuse(at, f"{name} {error}", error.code)
    if len(part.refusals) > before:
        return []
    sizes = [axis.size for axis in axes.values()]
    total = None if None in sizes else math.prod(size for size in sizes if size is not None)
    if not sample:
        if total is None or total > MOST_ELEMENTS:
            key = "parameters"
            part.refuse(key, f"{key} {_most(total or 0)}", "too_many")
            return []
        lists = [axis.values for axis in axes.values()]
        return [dict(zip(axes, point, strict=True)) for point in itertools.product(*lists)]
    if total is not None and sample > total:
        detail = _("sample is {sample}, but there are only {total} points; leave it out for all of them")
        part.refuse("sample", detail.format(sample=sample, total=total), "out_of_range")
        return []
    return _sampled(axes, sample, total, random.Random(seed))


@dataclass(frozen=True, slots=True)
class _Axis:
    """One parameter: its values, or how a value is drawn from a range (``size`` is None for that)."""

    values: Sequence[Value]
    draw: Callable[[float], Value]
    size: int | None


def _axis(value: object, *, is_sampled: bool) -> _Axis:
    if isinstance(value, list):
        if not 1 <= len(value) <= MOST_VALUES:
            raise Unacceptable(_("must list 1 to {n} values").format(n=MOST_VALUES), "not_a_list")
        values = [_value(each) for each in value]
        if len({(type(each), each) for each in values}) < len(values):
            raise Unacceptable(_("lists a value twice; once is enough"), "duplicate")
        return _Axis(values, lambda u: values[min(int(u * len(values)), len(values) - 1)], len(values))
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in RANGES:
        raise Unacceptable(
            _("must be a list of values, or with a sample a range such as {example}, not {value}").format(
                example="{log_uniform: [0.00001, 0.01]}", value=shown(value)
            )
        )
    if not is_sampled:
        raise Unacceptable(_("is a range: say how many points to draw by sample"), "missing")
    ((kind, ends),) = value.items()
    low, high = _ends(kind, ends)
    if kind == "integers":
        return _Axis((), lambda u: min(int(low) + int(u * (int(high) - int(low) + 1)), int(high)), None)
    if kind == "uniform":
        return _Axis((), lambda u: min(low + u * (high - low), high), None)
    logs = math.log(low), math.log(high)
    return _Axis((), lambda u: min(max(math.exp(logs[0] + u * (logs[1] - logs[0])), low), high), None)


def _ends(kind: str, ends: object) -> tuple[float, float]:
    """Return both ends of a range."""
    is_whole = kind == "integers"
    fits = isinstance(ends, list) and len(ends) == 2
    for end in ends if isinstance(ends, list) else ():
        is_number = isinstance(end, int) or (isinstance(end, float) and math.isfinite(end) and not is_whole)
        fits = fits and is_number and not isinstance(end, bool) and abs(end) <= (2**53 if is_whole else 1e300)
    if not fits or ends[0] >= ends[1] or (kind == "log_uniform" and ends[0] <= 0):  # type: ignore[index]
        said = {
            "integers": _("integers must be two whole numbers, the smaller first, such as [1, 8], not {value}"),
            "uniform": _("uniform must be two numbers, the smaller first, such as [0, 0.5], not {value}"),
            "log_uniform": _(
                "log_uniform must be two numbers above 0, the smaller first, such as [0.001, 1], not {value}"
            ),
        }[kind]
        raise Unacceptable(_("is a range; {fault}").format(fault=said.format(value=shown(ends))))
    return ends[0], ends[1]  # type: ignore[index]


def _value(value: object) -> Value:
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT or "\0" in value:
            raise Unacceptable(_("must have at most {n} characters and no NUL").format(n=LONGEST_TEXT), "too_long")
        return value
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise Unacceptable(_("must hold texts, numbers, true and false only, not {value}").format(value=shown(value)))


def _sampled(axes: Mapping[str, _Axis], sample: int, total: int | None, dice: random.Random) -> list[dict[str, Value]]:
    """Return so many points, the same for the same seed; those of a grid differ from each other.

    Only ``random()`` is drawn from, whose numbers for a seed are the same in all versions of Python.
    """
    if total is None:
        return [{name: axis.draw(dice.random()) for name, axis in axes.items()} for _point in range(sample)]
    if total <= SHUFFLED:
        places = list(range(total))
        for at in range(sample):
            other = at + min(int(dice.random() * (total - at)), total - at - 1)
            places[at], places[other] = places[other], places[at]
        return [_point(axes, place) for place in places[:sample]]
    found: dict[tuple[Value, ...], dict[str, Value]] = {}
    while len(found) < sample:
        point = {name: axis.draw(dice.random()) for name, axis in axes.items()}
        found.setdefault(tuple(point.values()), point)
    return list(found.values())


def _point(axes: Mapping[str, _Axis], place: int) -> dict[str, Value]:
    """Return a point of a grid by its place, the last parameter changing fastest."""
    found: dict[str, Value] = {}
    for name, axis in reversed(list(axes.items())):
        place, at = divmod(place, len(axis.values))
        found[name] = axis.values[at]
    return {name: found[name] for name in axes}
