"""How long a stage will run: what like it took before, what still runs, and how far such predictions could be trusted.

Three layers of evidence, each of which takes over what the one before leaves open: the stage's own family (same
project, user, name but for numbers, kind and request); its relatives, one voice for each family (of the same name in
the project, else of the same user, else of the same kind of stage); and the limit. Quantiles come from their mixture
and are calibrated online. The predictor learns stage by stage, reads no clock, and says the same in every process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from scheduler.core.types import Estimate
from scheduler.predict.calibration import Calibration
from scheduler.predict.evidence import STEPS, Family, closest, quantiles, uniform
from scheduler.predict.finished import Asked, Finished, family
from scheduler.predict.outlook import Values

# One's own family counts fully from a few stages on; the limit has the voice of two families.
_OWN_DOUBT: Final = 0.3
_LIMIT_VOICES: Final = 2.0
# The same name in the same project, sent by another user, speaks louder than what the user did under other names.
_NAMESAKE_VOICES: Final = 6.0
# So many relatives are asked, the newest, for so many stages each.
_RELATIVES: Final = 10
_OF_EACH: Final = 100


@dataclass(frozen=True, slots=True)
class Prediction:
    """``likely_s`` is the one value that will be nearest to the truth by ratio; the quantiles are calibrated.

    ``raw`` are the quantiles before calibration, to learn from once the truth is known. ``reliability`` is the share of
    such stages of late that ended by their P90; ``None`` where none has.
    """

    likely_s: float
    p50_s: float
    p90_s: float
    basis: str
    reliability: float | None = None
    declared: bool = False
    raw: tuple[float, float] = (0.0, 0.0)

    @property
    def estimate(self) -> Estimate:
        return Estimate(round(self.p50_s, 3), round(self.p90_s, 3), self.basis, self.declared, self.reliability)


@dataclass(frozen=True, slots=True)
class _Going:
    asked: Asked
    said: Prediction
    began_at: float | None = None


class Durations:
    """All that is known, ready to be asked. ``submit``, ``begin`` and ``learn`` are told in order of time."""

    def __init__(self, finished: Iterable[Finished] = ()) -> None:
        self._families: dict[tuple[str, ...], Family] = {}
        self._relatives: dict[tuple[str, ...], OrderedDict[tuple[str, ...], None]] = {}
        self._calibration = Calibration()
        self._going: dict[str, _Going] = {}
        for one in sorted(finished, key=lambda one: (one.ended_at, one.project, one.name, one.ran_s, one.id)):
            self.learn(one)

    def submit(self, name: str, asked: Asked, now: float) -> Prediction:
        """The prediction for a new stage, remembered until it ends, when it is held against the truth."""
        said = self.predict(asked, now)
        self._going[name] = _Going(asked, said)
        return said

    def begin(self, name: str, now: float, asked: Asked | None = None) -> None:
        """The stage runs from now on, which is evidence for others like it. ``asked`` introduces an unknown one."""
        going = self._going.get(name)
        if going is None and asked is not None:
            going = _Going(asked, self.predict(asked, now))
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
        said = going.said if going else self.predict(asked, one.ended_at - one.ran_s)
        self.leave(one.id)
        if not said.declared:
            self._calibration.observe(asked.family, *said.raw, one.work_s)
        self._family(asked).finish(one.work_s)

    def predict(self, asked: Asked, now: float) -> Prediction:
        """What to expect of such a stage if it were submitted now."""
        limit_s = asked.limit_s if asked.limit_s is not None else asked.default_limit_s
        own = self._families.get(asked.family)
        near = own.distribution(now, limit_s) if own else None
        voices = self._voices(asked, now, limit_s)
        finished = len(own.done) if own else 0
        if near is None and not voices:
            return declared(asked)
        if finished == 0 and not voices:
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
        trust = (finished / (finished + _OWN_DOUBT) if finished else 0.5) if near is not None else 0.0
        shares = [share * ((1.0 - trust) / total) for share in shares]
        if near is not None:
            parts.append(near[0])
            shares.append(trust * near[1])
        likely_s = _likely(asked, parts, shares)
        raw = quantiles(np.concatenate(parts), np.concatenate(shares), (0.5, 0.9))
        middle, upper = self._calibration.bands(asked.family)
        p90_s = max(raw[1] * upper.factor, 1.0)
        p50_s = min(max(raw[0] * middle.factor, 1.0), p90_s)
        if asked.limit_s is not None:
            p50_s, p90_s = min(p50_s, asked.limit_s), min(p90_s, asked.limit_s)
        reliability = round(upper.reliability, 3) if upper.seen else None
        basis = self._basis(asked, finished, len(voices), reliability)
        return Prediction(likely_s, p50_s, p90_s, basis, reliability, raw=(raw[0], raw[1]))

    def estimate(self, asked: Asked, now: float) -> Estimate:
        """The prediction as the engine takes it."""
        return self.predict(asked, now).estimate

    # -- inside -----------------------------------------------------------------------------------------------------

    def _family(self, asked: Asked) -> Family:
        key = asked.family
        found = self._families.get(key)
        if found is None:
            found = self._families[key] = Family()
        for circle in _circles(asked):
            known = self._relatives.setdefault(circle, OrderedDict())
            known[key] = None
            known.move_to_end(key)
            while len(known) > 4 * _RELATIVES:
                known.popitem(last=False)
        return found

    def _voices(self, asked: Asked, now: float, limit_s: float) -> list[tuple[Values, Values, float]]:
        """The families around this one that have finished stages, the newest first, each with one voice at most."""
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
        return voices

    def _basis(self, asked: Asked, finished: int, voices: int, reliability: float | None) -> str:
        name = family(asked.name) or asked.kind
        who = f" by {asked.user}" if asked.user else ""
        if finished:
            text = f"{finished} finished stage{'s' * (finished != 1)} like {name}{who} in {asked.project}"
        else:
            text = f"{voices} famil{'ies' if voices != 1 else 'y'} of stages near {name}{who} in {asked.project}"
        return text if reliability is None else f"{text}; {round(100 * reliability)} % ended by their P90"


def declared(asked: Asked) -> Prediction:
    """The prediction before any history: P50 is what the user expects (P90 half as much again), or three tenths of the
    limit (P90 all of it)."""
    limit_s = asked.limit_s if asked.limit_s is not None else asked.default_limit_s
    if asked.expected_s is not None:
        p90_s = 1.5 * asked.expected_s
        if asked.limit_s is not None:
            p90_s = min(p90_s, asked.limit_s)
        likely_s = min(asked.expected_s, p90_s)
        return Prediction(likely_s, likely_s, p90_s, "expected duration", declared=True)
    basis = "declared limits" if asked.limit_s is not None else "default limit of the pool"
    likely_s = closest(uniform(limit_s), np.full(STEPS, 1.0 / STEPS))
    return Prediction(likely_s, 0.3 * limit_s, limit_s, basis, declared=True)


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
