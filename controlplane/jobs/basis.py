"""Says what a forecast rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controlplane.clause_templates import RECORD
from controlplane.clauses import Told, clause, told
from scheduler.core.model.basis import Basis
from scheduler.core.model.clauses import several

# The clauses of one run, by the code that is of several.
_ONE_RUN: Final[Mapping[str, str]] = {
    Basis.OWN_RUNS: "BasisOwnRun",
    Basis.OTHER_REQUESTS: "BasisOtherRequest",
}


def sentence(code: str, runs: int = 0) -> Told:
    """Return what the forecast rests on as a sentence and its clauses; ``code`` is a :class:`Basis`.

    Records that are older than the codes have an English sentence in its place, which is returned unchanged.
    """
    if code in _ONE_RUN:
        return told(clause(several(runs, _ONE_RUN[code], code), runs=runs))
    return told(clause(code)) if code in RECORD else Told(code)


def plain(code: str, runs: int = 0) -> dict[str, Any]:
    """Return the same as ``basis`` and ``basis_said``, as forecasts are stored and shown."""
    found = sentence(code, runs)
    return {"basis": found.text, "basis_said": found.said}


def memory(seen: int, ran_out: int) -> dict[str, Any]:
    """Return what advice on memory rests on: ``seen`` finished stages, of which ``ran_out`` ran out of memory."""
    said = [clause("BasisPeaks", seen=seen)]
    if ran_out:
        said.append(clause("BasisRanOut", ran_out=ran_out))
    found = told(*said)
    return {"basis": found.text, "basis_said": found.said}
