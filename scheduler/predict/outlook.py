"""A prior for the run times of a family with few finished stages: a distribution of unknown scale, updated by evidence.

Run times spread by orders of magnitude, so the scale is as likely to lie between one and two minutes as between one and
two hours, up to the limit; around it they follow a log-logistic distribution, narrow or wide. Finished stages
contribute their times, and running ones that they take longer (Bayes on a grid). The survival function is closed, and
the tail is as heavy as that of real clusters' jobs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_SHAPES: Final = np.array([1.0, 2.0, 4.0])
_SCALES: Final = 20
# The least scale.
_LEAST_S: Final = 10.0
# Each distribution is represented by so many equally likely values; less likely distributions than this are left out.
_STEPS: Final = 10
_STEP: Final = (np.arange(_STEPS) + 0.5) / _STEPS
_UNLIKELY: Final = 1e-4
# The number of groups of running stages.
_GROUPS: Final = 40


def outlook(done: Values, spent: Values, limit_s: float, beyond_s: float) -> tuple[Values, Values]:
    """Return run times above ``beyond_s`` and their probabilities (which sum to one), none longer than the limit.
    ``done`` are the times of finished stages, ``spent`` those of running ones so far, sorted."""
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
    """Return the distance of each time from each scale, as log odds."""
    distance = shape[:, None] * (np.log(np.maximum(times, 1.0))[None, :] - np.log(scale)[:, None])
    return np.asarray(np.clip(distance, -50.0, 50.0))
