"""How long a stage will run: what it took before, what its user says, what like it took, and what still runs.

The runs of the stage itself come first: same project, user, name but for numbers, kind, request, limit and declared
time. Two of them leave little to anything else, and from three on nothing else counts. Until then a declared time
leads; without one it is the runs of the same name by the same user, and only then strangers (of the same name in the
project, else of the same user, else of the same kind; each family has one voice) and the limit. What rests on strangers
or on a limit alone is something to plan with and nothing to show: it is not *known*. The predictor learns stage by
stage, reads no clock, and says the same in every process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.core.model.basis import Basis
from scheduler.core.model.types import Estimate
from scheduler.predict.calibration import Calibration
from scheduler.predict.evidence import STEPS, Family, around, closest, quantiles, smoothed, uniform
from scheduler.predict.finished import Asked, Finished, family
from scheduler.predict.outlook import Values
from scheduler.predict.sayings import Sayings

# The nearest value by ratio: one's own family counts fully from a few stages on; the limit has the voice of two.
_OWN_DOUBT: Final = 0.3
_LIMIT_VOICES: Final = 2.0
# The same name in the same project, sent by another user, speaks louder than what the user did under other names.
_NAMESAKE_VOICES: Final = 6.0
# So many relatives are asked, the newest, for so many stages each.
_RELATIVES: Final = 10
_OF_EACH: Final = 100
# The share of the quantiles that one and two runs of the stage itself decide, beside a declared time and without one;
# from so many on they decide all.
_OWN: Final = 3
_BESIDE_DECLARED: Final = (0.0, 0.8, 0.95)
_BESIDE_OTHERS: Final = (0.0, 0.93, 0.95)
# Declared times apart by more than this factor are of different work under one name.
_SAME_WORK: Final = 2.0
# A range never ends nearer than this to its middle; one that ends farther away than that is of no use to anybody.
_NARROWEST: Final = 1.05
_WIDEST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """``likely_s`` is the one value that will be nearest to the truth by ratio; the quantiles are calibrated.

    ``raw`` are the quantiles before calibration, to learn from once the truth is known, and ``own`` how many runs of
    the stage itself they rest on. ``reliability`` is the share of such stages of late that ended by their P90; ``None``
    where none has. Where it is not ``known``, it rests on nothing that is like the stage. ``runs`` is how many runs
    the ``basis`` names, if it names runs.
    """

    likely_s: float
    p50_s: float
    p90_s: float
    basis: Basis
    reliability: float | None = None
    declared: bool = False
    raw: tuple[float, float] = (0.0, 0.0)
    own: int = 0
    known: bool = True
    runs: int = 0

    @property
    def estimate(self) -> Estimate:
        """The prediction as the engine takes it; a range too wide to be useful is none."""
        p50_s, p90_s = round(self.p50_s, 3), round(self.p90_s, 3)
        if self.known and p90_s > _WIDEST * p50_s:
            return Estimate(p50_s, p90_s, Basis.TOO_WIDE, self.declared, self.reliability, known=False)
        return Estimate(p50_s, p90_s, self.basis, self.declared, self.reliability, self.known, self.runs)


@dataclass(frozen=True, slots=True)
class _Going:
    asked: Asked
    said: Prediction | None
    began_at: float | None = None


class Durations:
    """All that is known, ready to be asked. ``submit``, ``begin`` and ``learn`` are told in order of time."""

    def __init__(self, finished: Iterable[Finished] = ()) -> None:
        self._families: dict[tuple[str, ...], Family] = {}
        self._relatives: dict[tuple[str, ...], OrderedDict[tuple[str, ...], None]] = {}
        self._calibration = Calibration()
        self._sayings = Sayings()
        self._going: dict[str, _Going] = {}
        for one in sorted(finished, key=lambda one: (one.ended_at, one.project, one.name, one.ran_s, one.id)):
            self.learn(one)

    def submit(self, name: str, asked: Asked, now: float) -> Prediction:
        """The prediction for a new stage, remembered until it ends, when it is held against the truth."""
        said = self.predict(asked, now)
        self._going[name] = _Going(asked, said)
        return said

    def begin(self, name: str, now: float, asked: Asked | None = None, *, is_late: bool = False) -> None:
        """The stage runs from ``now`` on, which is evidence for others like it. ``asked`` introduces an unknown one; of
        one that is told of long after it began (``is_late``) nothing is predicted before it ends."""
        going = self._going.get(name)
        if going is None and asked is not None:
            going = _Going(asked, None if is_late else self.predict(asked, now))
        if going is None:
            return
        if going.began_at is not None:
            self._family(going.asked).leave(going.began_at)
        self._family(going.asked).begin(now)
        self._going[name] = _Going(going.asked, going.said, now)

    def leave(self, name: str) -> None:
        """The stage ended in a way that says nothing of its run time, or goes back to the queue."""
        going = self._going.pop(name, None)
        if going is not None and going.began_at is not None:
            self._family(going.asked).leave(going.began_at)

    def learn(self, one: Finished) -> None:
        """Take in a stage that completed."""
        going = self._going.get(one.id) if one.id else None
        asked = going.asked if going else one.asked
        self.leave(one.id)
        said = (going and going.said) or self.predict(asked, one.ended_at - one.ran_s)
        family_ = self._family(asked)
        if said.own >= _OWN:
            self._calibration.observe(asked.family, *said.raw, one.work_s)
        elif not said.known and not family_.done:
            # Of those that come at once the first speaks for all: a burst is one observation.
            self._calibration.meet(said.raw[1], one.work_s)
        if asked.expected_s:
            self._sayings.learn(asked, one.ran_s)
        family_.finish(one.work_s, one.speed)

    def predict(self, asked: Asked, now: float) -> Prediction:
        """What to expect of such a stage if it were submitted now."""
        exact = self._families.get(asked.family)
        if exact is None or not exact.done:
            sibling = self._sibling(asked)
            if sibling is not None:
                return self._by_own(asked, now, sibling, exact=False)
            if asked.expected_s:
                return self._by_declared(asked, now, exact)
            return self._by_others(asked, now, exact)
        return self._by_own(asked, now, exact, exact=True)

    def estimate(self, asked: Asked, now: float) -> Estimate:
        """The prediction as the engine takes it."""
        return self.predict(asked, now).estimate

    # -- inside -----------------------------------------------------------------------------------------------------

    def _by_own(self, asked: Asked, now: float, own: Family, *, exact: bool) -> Prediction:
        """From runs of the stage itself. Those of another request or limit count as one at most."""
        limit_s, runs = _limit_s(asked), len(own.done) if exact else 1
        near = own.distribution(now, limit_s)
        assert near is not None, "it has finished runs"
        beside, shares = [uniform(limit_s)], [np.full(STEPS, _LIMIT_VOICES / STEPS)]
        if asked.expected_s:
            # What was said holds for where it ran.
            beside, shares = [around(asked.expected_s * own.speed)], [np.full(STEPS, 1.0 / STEPS)]
        else:
            for values, weights, voice in self._voices(asked, now, limit_s):
                beside.append(values)
                shares.append(voice * weights)
        others, of_others = np.concatenate(beside), np.concatenate(shares)
        of_others /= of_others.sum()
        trust = runs / (runs + _OWN_DOUBT)
        likely_s = _likely(asked, [near[0], others], [trust * near[1], (1.0 - trust) * of_others])
        values, weights = smoothed(*near, own.done)
        if runs < _OWN:
            trust = (_BESIDE_DECLARED if asked.expected_s else _BESIDE_OTHERS)[runs]
            values = np.concatenate([values, others])
            weights = np.concatenate([trust * weights, (1.0 - trust) * of_others])
        half_s, most_s = quantiles(values, weights, (0.5, 0.9))
        p50_s, p90_s, reliability = half_s, most_s, None
        if exact and runs >= _OWN:
            middle, upper = self._calibration.bands(asked.family)
            # Where the two bands cross, that of the P90 is the slower and surer one.
            p90_s = most_s * upper.factor
            p50_s = min(half_s * middle.factor, p90_s)
            reliability = round(upper.reliability, 3) if upper.seen else None
        p50_s, p90_s = _bounded(asked, p50_s, p90_s)
        return Prediction(
            likely_s,
            p50_s,
            p90_s,
            Basis.OWN_RUNS if exact else Basis.OTHER_REQUESTS,
            reliability,
            raw=(half_s, most_s),
            own=runs if exact else 0,
            runs=len(own.done),
        )

    def _by_declared(self, asked: Asked, now: float, exact: Family | None) -> Prediction:
        """As declared, as what was declared of late turned out; those that run for longer already say that it is more.

        What others took says nothing here: a stranger's second does not shorten what somebody expects to take minutes.
        """
        said = declared(asked)
        assert asked.expected_s is not None, "something was declared"
        middle, upper = self._sayings.factors(asked)
        p50_s, p90_s = asked.expected_s * middle, asked.expected_s * upper
        spent = sorted(now - at for at in exact.running) if exact else []
        if spent and spent[-1] > p50_s:
            p50_s = max(p50_s, spent[len(spent) // 2])
            p90_s = max(p90_s, 1.5 * spent[-1])
        p50_s, p90_s = _bounded(asked, p50_s, p90_s)
        return replace(said, likely_s=p50_s, p50_s=p50_s, p90_s=p90_s)

    def _by_others(self, asked: Asked, now: float, exact: Family | None) -> Prediction:
        """From what is farther away, and the limit."""
        limit_s = _limit_s(asked)
        near = exact.distribution(now, limit_s) if exact else None
        voices, circle = self._circle(asked, now, limit_s)
        if not voices:
            said = declared(asked)
            if near is None:
                return said
            # Those that run tell where the end is not: what they have outlived is no median any more.
            p50_s = min(max(said.p50_s, quantiles(*near, (0.5,))[0]), said.p90_s)
            return replace(said, likely_s=_likely(asked, [near[0]], [near[1]]), p50_s=p50_s)
        parts, shares = [uniform(limit_s)], [np.full(STEPS, _LIMIT_VOICES / STEPS)]
        for values, weights, voice in voices:
            parts.append(values)
            shares.append(voice * weights)
        total = sum(float(share.sum()) for share in shares)
        trust = 0.5 if near is not None else 0.0
        shares = [share * ((1.0 - trust) / total) for share in shares]
        if near is not None:
            parts.append(near[0])
            shares.append(trust * near[1])
        likely_s = _likely(asked, parts, shares)
        half_s, most_s = quantiles(np.concatenate(parts), np.concatenate(shares), (0.5, 0.9))
        p50_s, p90_s = _bounded(asked, half_s, most_s * self._calibration.newcomers)
        known = circle == "name"
        basis = Basis.NAMESAKES if known else Basis.UNKNOWN
        return Prediction(likely_s, p50_s, p90_s, basis, raw=(half_s, most_s), known=known)

    def _sibling(self, asked: Asked) -> Family | None:
        """The newest of the same user, project, name and kind that asked otherwise, where it may be the same work: no
        declared time says the opposite."""
        if not family(asked.name):
            return None
        for key in reversed(self._relatives.get(asked.mine, {})):
            other = self._families[key]
            if other.done and _same_work(asked.expected_s, other.expected_s):
                return other
        return None

    def _family(self, asked: Asked) -> Family:
        key = asked.family
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = Family(expected_s=asked.expected_s)
        for circle in (asked.mine, *_circles(asked)):
            known = self._relatives.setdefault(circle, OrderedDict())
            known[key] = None
            known.move_to_end(key)
            while len(known) > 4 * _RELATIVES:
                known.popitem(last=False)
        return found

    def _voices(self, asked: Asked, now: float, limit_s: float) -> list[tuple[Values, Values, float]]:
        return self._circle(asked, now, limit_s)[0]

    def _circle(self, asked: Asked, now: float, limit_s: float) -> tuple[list[tuple[Values, Values, float]], str]:
        """The families around this one that have finished stages, the newest first, each with one voice at most; and
        what they have in common with it."""
        found: dict[tuple[str, ...], None] = {}
        circle: tuple[str, ...] = ()
        for circle in _circles(asked):
            found.update(dict.fromkeys(reversed(self._relatives.get(circle, {}))))
            if any(self._families[key].done for key in found if key != asked.family):
                break  # the nearest circle that knows anything speaks alone
        voices = []
        for key in found:
            other = self._families[key]
            if key == asked.family or not other.done:
                continue
            known = other.distribution(now, limit_s, _OF_EACH)
            if known is not None:
                loud = _NAMESAKE_VOICES if circle[0] == "name" else 1.0
                voices.append((*known, loud * len(other.done) / (len(other.done) + _OWN_DOUBT)))
            if len(voices) == _RELATIVES:
                break
        if circle[0] == "kind":  # strangers have one voice together
            voices = [(values, weights, voice / len(voices)) for values, weights, voice in voices]
        return voices, circle[0]


def declared(asked: Asked) -> Prediction:
    """The prediction before any history: P50 is what the user expects (P90 half as much again), or three tenths of the
    limit (P90 all of it), which is a number to plan with and no knowledge."""
    limit_s = _limit_s(asked)
    if asked.expected_s:
        p50_s, p90_s = _bounded(asked, asked.expected_s, 1.5 * asked.expected_s)
        return Prediction(p50_s, p50_s, p90_s, Basis.DECLARED, declared=True, raw=(p50_s, p90_s))
    likely_s = closest(uniform(limit_s), np.full(STEPS, 1.0 / STEPS))
    raw = 0.3 * limit_s, limit_s
    return Prediction(likely_s, *raw, Basis.UNKNOWN, declared=True, raw=raw, known=False)


def _limit_s(asked: Asked) -> float:
    return asked.limit_s if asked.limit_s is not None else asked.default_limit_s


def _bounded(asked: Asked, p50_s: float, p90_s: float) -> tuple[float, float]:
    """Both in order and apart, and neither beyond the limit. What somebody expects to take less than a second may."""
    least_s = min(1.0, asked.expected_s or 1.0)
    p50_s = max(p50_s, least_s)
    p90_s = max(p90_s, _NARROWEST * p50_s)
    if asked.limit_s is not None:
        p50_s, p90_s = min(p50_s, asked.limit_s), min(p90_s, asked.limit_s)
    return p50_s, p90_s


def _same_work(one_s: float | None, other_s: float | None) -> bool:
    if not one_s or not other_s:
        return not one_s  # who says something is believed before a run of which nothing was said
    return max(one_s, other_s) <= _SAME_WORK * min(one_s, other_s)


def _circles(asked: Asked) -> list[tuple[str, ...]]:
    """Groups of families around a stage, the nearest first."""
    circles: list[tuple[str, ...]] = []
    if family(asked.name):
        circles.append(("name", asked.project, family(asked.name), asked.kind))
    if asked.user:
        circles.append(("user", asked.project, asked.user))
    return [*circles, ("kind", asked.project, asked.kind)]


def _likely(asked: Asked, parts: list[Values], shares: list[Values]) -> float:
    values = np.maximum(np.concatenate(parts), 1.0)
    if asked.limit_s is not None:
        values = np.minimum(values, asked.limit_s)
    return closest(values, np.concatenate(shares))
