"""Speaks to Switchyard from Python: the client, and ``switchyard.runtime`` for code that runs inside a job.

    from switchyard import Client, Devices, Job

    client = Client.from_env()
    job = client.jobs.submit(Job(name="sft", command="torchrun train.py", devices=Devices("H100", 8)), workdir=".")
    print(job.wait().state)

Names are imported when they are first used, so that ``import switchyard`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.aio.client import AsyncClient, AsyncJobRecord
    from switchyard.client import Client, JobRecord
    from switchyard.job import Devices, Job, Stage
    from switchyard.problem import (
        ApiProblem,
        BundleError,
        SpecError,
        SwitchyardError,
        Unreachable,
        WaitTimeout,
    )

__version__ = "0.1.0"

_HOME = {
    "AsyncClient": "aio.client",
    "AsyncJobRecord": "aio.client",
    "Client": "client",
    "JobRecord": "client",
    "Devices": "job",
    "Job": "job",
    "Stage": "job",
    "ApiProblem": "problem",
    "BundleError": "problem",
    "SpecError": "problem",
    "SwitchyardError": "problem",
    "Unreachable": "problem",
    "WaitTimeout": "problem",
}

__all__ = [
    "ApiProblem",
    "AsyncClient",
    "AsyncJobRecord",
    "BundleError",
    "Client",
    "Devices",
    "Job",
    "JobRecord",
    "SpecError",
    "Stage",
    "SwitchyardError",
    "Unreachable",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    try:
        return getattr(import_module(f"switchyard.{_HOME[name]}"), name)
    except KeyError:
        raise AttributeError(f"switchyard has no {name!r}; it has {', '.join(__all__)}") from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
