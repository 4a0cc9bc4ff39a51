"""Predicts run times from earlier runs, the declared time, similar stages, and running ones.

Runs of the same stage come first: same project, user, name without numbers, kind, request, limit and declared time. Two
of them leave little weight to anything else, and from three on nothing else counts. Until then a declared time leads.
Without one it is runs of the same name by the same user, and then others (of the same name in the project, else of the
same user, else of the same kind; each family has one vote) and the limit. A prediction from others or from a limit
alone is used for planning but not shown: it is not *known*. The predictor learns stage by stage, reads no clock, and
gives the same result in every process.
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

# The nearest value by ratio: the stage's own family has full weight from a few stages on; the limit has the weight of
# two.
_OWN_DOUBT: Final = 0.3
_LIMIT_VOICES: Final = 2.0
# The same name in the project by another user has more weight than the user's stages of other names.
_NAMESAKE_VOICES: Final = 6.0
# How many related families are used, the newest, with how many stages each.
_RELATIVES: Final = 10
_OF_EACH: Final = 100
# The share of the quantiles that one and two runs of the stage itself decide, with a declared time and without one;
# from so many runs on they decide all.
_OWN: Final = 3
_BESIDE_DECLARED: Final = (0.0, 0.8, 0.95)
_BESIDE_OTHERS: Final = (0.0, 0.93, 0.95)
# Declared times that differ by more than this factor are of different work under one name.
_SAME_WORK: Final = 2.0
# The end of a range is at least this factor from its middle; one farther away than that is useless.
_NARROWEST: Final = 1.05
_WIDEST: Final = 10.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """``likely_s`` is the single value nearest to the truth by ratio; the quantiles are calibrated.

    ``raw`` are the quantiles before calibration, to learn from later, and ``own`` how many runs of the stage itself
    they rest on. ``reliability`` is the share of recent such stages that ended by their P90; ``None`` without any. If
    not ``known``, the prediction rests on nothing similar. ``runs`` is how many runs the ``basis`` names, if it names
    runs.
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
        """Return the prediction for the engine, without a range that is too wide to be useful."""
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
    """The predictor. ``submit``, ``begin`` and ``learn`` are called in order of time."""

    def __init__(self, finished: Iterable[Finished] = ()) -> None:
        self._families: dict[tuple[str, ...], Family] = {}
        self._relatives: dict[tuple[str, ...], OrderedDict[tuple[str, ...], None]] = {}
        self._calibration = Calibration()
        self._sayings = Sayings()
        self._going: dict[str, _Going] = {}
        for one in sorted(finished, key=lambda one: (one.ended_at, one.project, one.name, one.ran_s, one.id)):
            self.learn(one)

    def submit(self, name: str, asked: Asked, now: float) -> Prediction:
        """Predict a new stage, and remember the prediction until the stage ends, to learn from it."""
        said = self.predict(asked, now)
        self._going[name] = _Going(asked, said)
        return said

    def begin(self, name: str, now: float, asked: Asked | None = None, *, is_late: bool = False) -> None:
        """Record that the stage runs from ``now`` on, which is evidence for similar ones. ``asked`` introduces an
        unknown stage; with ``is_late`` it began long ago, and is not predicted before it ends."""
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
        """Record that the stage ended in a way without evidence of its run time, or returned to the queue."""
        going = self._going.pop(name, None)
        if going is not None and going.began_at is not None:
            self._family(going.asked).leave(going.began_at)

    def learn(self, one: Finished) -> None:
        """Learn from a stage that completed."""
        going = self._going.get(one.id) if one.id else None
        asked = going.asked if going else one.asked
        self.leave(one.id)
        said = (going and going.said) or self.predict(asked, one.ended_at - one.ran_s)
        family_ = self._family(asked)
        if said.own >= _OWN:
            self._calibration.observe(asked.family, *said.raw, one.work_s)
        elif not said.known and not family_.done:
            # Of a burst the first stage stands for all: it is one observation.
            self._calibration.observe_first(said.raw[1], one.work_s)
        if asked.expected_s:
            self._sayings.learn(asked, one.ran_s)
        family_.finish(one.work_s, one.speed)

    def predict(self, asked: Asked, now: float) -> Prediction:
        """Predict such a stage if it were submitted now."""
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
        """Return the prediction for the engine."""
        return self.predict(asked, now).estimate

    # -- internal -----------------------------------------------------------------------------------------------------

    def _by_own(self, asked: Asked, now: float, own: Family, *, exact: bool) -> Prediction:
        """Predict from runs of the stage itself. Those with another request or limit count as one at most."""
        limit_s, runs = _limit_s(asked), len(own.done) if exact else 1
        near = own.distribution(now, limit_s)
        assert near is not None, "it has finished runs"
        beside, shares = [uniform(limit_s)], [np.full(STEPS, _LIMIT_VOICES / STEPS)]
        if asked.expected_s:
            # The declared time is for the device where it ran.
            beside, shares = [around(asked.expected_s * own.speed)], [np.full(STEPS, 1.0 / STEPS)]
        else:
            for values, weights, voice in self._votes(asked, now, limit_s):
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
            # If the two bands cross, that of the P90 is used: it moves more slowly and surely.
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
        """Predict from the declared time, corrected by how earlier ones turned out; running stages beyond it raise it.

        Run times of others are not used: a stranger's second does not shorten what somebody expects to take minutes.
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
        """Predict from less similar stages and the limit."""
        limit_s = _limit_s(asked)
        near = exact.distribution(now, limit_s) if exact else None
        voices, circle = self._similar(asked, now, limit_s)
        if not voices:
            said = declared(asked)
            if near is None:
                return said
            # Running stages show where the end is not: a time that they have exceeded is no median any more.
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
        """Return the newest family of the same user, project, name and kind with another request, if it may be the same
        work by its declared time."""
        if not family(asked.name):
            return None
        for key in reversed(self._relatives.get(asked.any_request, {})):
            other = self._families[key]
            if other.done and _same_work(asked.expected_s, other.expected_s):
                return other
        return None

    def _family(self, asked: Asked) -> Family:
        key = asked.family
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = Family(expected_s=asked.expected_s)
        for circle in (asked.any_request, *_groups(asked)):
            known = self._relatives.setdefault(circle, OrderedDict())
            known[key] = None
            known.move_to_end(key)
            while len(known) > 4 * _RELATIVES:
                known.popitem(last=False)
        return found

    def _votes(self, asked: Asked, now: float, limit_s: float) -> list[tuple[Values, Values, float]]:
        return self._similar(asked, now, limit_s)[0]

    def _similar(self, asked: Asked, now: float, limit_s: float) -> tuple[list[tuple[Values, Values, float]], str]:
        """Return the related families with finished stages, the newest first, each with one vote at most; and what they
        have in common with this one."""
        found: dict[tuple[str, ...], None] = {}
        circle: tuple[str, ...] = ()
        for circle in _groups(asked):
            found.update(dict.fromkeys(reversed(self._relatives.get(circle, {}))))
            if any(self._families[key].done for key in found if key != asked.family):
                break  # only the most similar group with finished stages is used
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
        if circle[0] == "kind":  # stages of one kind have one vote together
            voices = [(values, weights, voice / len(voices)) for values, weights, voice in voices]
        return voices, circle[0]


def declared(asked: Asked) -> Prediction:
    """Predict without any history: P50 is the declared time (P90 half as much again), or three tenths of the limit (P90
    all of it), which is a number for planning only."""
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
    """Return both in order and at a distance, and neither beyond the limit. Only a declared time may be below a
    second."""
    least_s = min(1.0, asked.expected_s or 1.0)
    p50_s = max(p50_s, least_s)
    p90_s = max(p90_s, _NARROWEST * p50_s)
    if asked.limit_s is not None:
        p50_s, p90_s = min(p50_s, asked.limit_s), min(p90_s, asked.limit_s)
    return p50_s, p90_s


def _same_work(one_s: float | None, other_s: float | None) -> bool:
    if not one_s or not other_s:
        return not one_s  # a declared time has precedence over runs without one
    return max(one_s, other_s) <= _SAME_WORK * min(one_s, other_s)


def _groups(asked: Asked) -> list[tuple[str, ...]]:
    """Return groups of related families, most similar first."""
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
