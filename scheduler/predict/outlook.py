"""What the run times of a family may be of which little has finished yet: a law with unknown scale, made sure of by
and by.

Run times spread by orders of magnitude, so the scale is as likely to lie between one and two minutes as between one and
two hours, up to the limit; around it they follow a log-logistic law, narrow or wide. Those that finished tell by their
time, and those that run by having taken longer than so (Bayes on a grid). Its survival function is closed, and its tail
is as heavy as that of real clusters' jobs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_SHAPES: Final = np.array([1.0, 2.0, 4.0])
_SCALES: Final = 20
# No scale is thought to be below this.
_LEAST_S: Final = 10.0
# Each law stands for itself by so many equally likely values; laws less likely than this are left out.
_STEPS: Final = 10
_STEP: Final = (np.arange(_STEPS) + 0.5) / _STEPS
_UNLIKELY: Final = 1e-4
# Those that run are looked at in so many groups.
_GROUPS: Final = 40


def outlook(done: Values, spent: Values, limit_s: float, beyond_s: float) -> tuple[Values, Values]:
    """Run times above ``beyond_s`` and their probabilities (which sum to one), none longer than the limit. ``done`` are
    the times of those that finished, ``spent`` those that others have run so far, sorted."""
    scales = np.exp(np.linspace(np.log(min(_LEAST_S, limit_s / 2.0)), np.log(limit_s), _SCALES))
    scale, shape = np.repeat(scales, len(_SHAPES)), np.tile(_SHAPES, _SCALES)
    belief = np.zeros(len(scale))
    if len(done):
        far = _far(done, scale, shape)
        belief += (np.log(shape)[:, None] + far - 2.0 * np.logaddexp(0.0, far)).sum(axis=1)
    if len(spent):
        groups = min(len(spent), _GROUPS)
        sizes = np.full(groups, len(spent) // groups)
        sizes[: len(spent) % groups] += 1
        means = np.add.reduceat(spent, np.cumsum(sizes) - sizes) / sizes
        belief -= (sizes * np.logaddexp(0.0, _far(means, scale, shape))).sum(axis=1)
    passed = np.zeros(len(scale))
    if beyond_s > 0.0:
        far = _far(np.array([beyond_s]), scale, shape)[:, 0]
        belief -= np.logaddexp(0.0, far)
        passed = 1.0 / (1.0 + np.exp(-far))
    weights = np.exp(belief - belief.max())
    weights /= weights.sum()
    likely = weights > _UNLIKELY
    scale, shape, passed, weights = scale[likely], shape[likely], passed[likely], weights[likely]
    share = np.minimum(passed[:, None] + (1.0 - passed[:, None]) * _STEP, 1.0 - 1e-9)
    values = scale[:, None] * (share / (1.0 - share)) ** (1.0 / shape[:, None])
    values = np.clip(values, 1.0, max(limit_s, beyond_s))
    return values.ravel(), np.repeat(weights / (weights.sum() * _STEPS), _STEPS)


def _far(times: Values, scale: Values, shape: Values) -> Values:
    """How far each time lies beyond each scale, on the scale of the log odds."""
    distance = shape[:, None] * (np.log(np.maximum(times, 1.0))[None, :] - np.log(scale)[:, None])
    return np.asarray(np.clip(distance, -50.0, 50.0))
