"""Computes the checkpoint interval from the cost of a save and the rate of interruptions.

The interval is that of J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974); the
refinement by J. T. Daly (2006) matters only if a save takes a large part of the time between two interruptions. All
times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

HOUR_S: Final = 3600.0
# A shorter interval costs more in the stage's own loop than it saves; a longer one risks half a working day.
LEAST_S: Final = 60.0
MOST_S: Final = 4 * HOUR_S
# The assumed cost of a save if none was measured.
SAVE_S: Final = 30.0
# The time until a stage that is asked to save has been told and has come to the end of its step.
TOLD_S: Final = 15.0
# The prior of a pool: one interruption in so much time of a node, of a device, of an attempt. For a node with eight
# GPUs that is six faults in a thousand days.
NODE_PRIOR_S: Final = 10_000 * HOUR_S
DEVICE_PRIOR_S: Final = 50_000 * HOUR_S
ATTEMPT_PRIOR_S: Final = 720 * HOUR_S


@dataclass(frozen=True, slots=True)
class Interruptions:
    """The interruptions with lost work in a pool, and the observed time: the time that attempts held nodes (``node_s``)
    and accelerators (``device_s``), and ran (``attempt_s``). Stops count if the stage did not save before it ended."""

    node_faults: int = 0
    node_s: float = 0.0
    device_faults: int = 0
    device_s: float = 0.0
    stops: int = 0
    attempt_s: float = 0.0


NONE_SEEN: Final = Interruptions()


def between_s(seen: Interruptions, nodes: int, devices: int) -> float:
    """Return the mean time between two interruptions of an attempt that holds so many nodes and accelerators in such a
    pool.

    Each rate is observed together with the prior, so a pool without a fault is not assumed to have none ever.
    """
    per_node = _rate(seen.node_faults, seen.node_s, NODE_PRIOR_S)
    per_device = _rate(seen.device_faults, seen.device_s, DEVICE_PRIOR_S)
    per_attempt = _rate(seen.stops, seen.attempt_s, ATTEMPT_PRIOR_S)
    return 1.0 / (nodes * per_node + devices * per_device + per_attempt)


def every_s(save_s: float, mean_between_s: float) -> float:
    """Return the time between two saves that cost ``save_s`` each: ``sqrt(2 * save_s * mean_between_s)``, bounded."""
    return min(MOST_S, max(LEAST_S, sqrt(2.0 * save_s * mean_between_s)))


def ahead_s(save_s: float) -> float:
    """Return how long before a planned stop a stage is asked to save, if a save costs ``save_s``.

    The save must be done by then even if it takes twice as long; what is lost at the stop is the work since it began.
    """
    return 2.0 * max(save_s, 0.0) + TOLD_S


def _rate(count: int, within_s: float, prior_s: float) -> float:
    return (count + 1) / (within_s + prior_s)
