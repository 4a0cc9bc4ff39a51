"""Waits until what was deployed answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from switchyard.problem import SwitchyardError, WaitTimeout

LOOK_S = 0.2


def wait_until_ready(kind: str, number: int, get: Callable[[int], Any], timeout_s: float | None) -> Any:
    """Return what ``get`` tells of the ``kind`` (service, function) of this number once that is READY.

    Raises ``WaitTimeout``, and ``SwitchyardError`` if it cannot serve.
    """
    began = time.monotonic()
    while (found := get(number))[kind]["state"] != "READY":
        if found[kind]["state"] == "FAILED":
            raise SwitchyardError(found[kind]["fault"])
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            raise WaitTimeout(f"{kind} {number} is {found[kind]['state']} after {timeout_s:g} s")
        time.sleep(LOOK_S)
    return found
