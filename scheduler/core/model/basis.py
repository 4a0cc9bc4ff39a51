"""The basis of a forecast as codes; the control plane renders them as sentences."""

from __future__ import annotations

from enum import StrEnum


class Basis(StrEnum):
    """The basis of a forecast of a run time or of a start; codes that begin with ``Unknown`` tell why there is none."""

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
