"""What a forecast rests on, as codes; people read them as sentences that the control plane makes."""

from __future__ import annotations

from enum import StrEnum


class Basis(StrEnum):
    """What a forecast of a run time or of a start rests on; those that begin with ``Unknown`` say why there is none."""

    LIMITS = "BasisLimits"
    DECLARED = "BasisDeclared"
    OWN_RUNS = "BasisOwnRuns"
    OTHER_REQUESTS = "BasisOtherRequests"
    NAMESAKES = "BasisNamesakes"
    AHEAD = "BasisAhead"
    UNKNOWN = "UnknownNoneLikeIt"
    TOO_WIDE = "UnknownTooWide"
    UNEVEN = "UnknownUneven"
    # Run times that a simulation is given rather than predicts.
    TRACE = "BasisTrace"
    TRUTH = "BasisTruth"
