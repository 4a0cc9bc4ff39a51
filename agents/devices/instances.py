"""The MIG instances that this agent created for stages, and the creation of more.

An instance stays when its stage has ended, so that the next stage that asks for the same need not wait for the driver;
it is removed when its slots are needed for another. Instances of others are never touched. The list of own instances
survives a restart of the agent in a file; no instance survives a reboot of the host.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import msgspec

from agents.decode import BoundedDecoder
from agents.devices.readers.library import ReaderSilent, VendorProcess
from agents.ends import clause
from agents.protocol import Clause, DeviceClaim, Name, PartSpec
from agents.runtimes import Unlaunchable
from agents.supervisor.record import write_whole

# Creating one takes a driver a second or two; a wedged driver must not block a start for ever.
DEADLINE_S = 30.0
MODULE, LIBRARY = "agents.devices.readers.nvml_instances", "NVIDIA's management library"


class MadeHere(msgspec.Struct, frozen=True):
    """The instances that agents with this state folder created, by uuid."""

    own: Annotated[list[Name], msgspec.Meta(max_length=10_000)] = msgspec.field(default_factory=list)


_made_here = BoundedDecoder[MadeHere](MadeHere)


class Instances:
    """``lock`` is held while an instance is created: a look at the cards meanwhile would take it for a foreign one."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.lock = threading.Lock()
        self.own = frozenset((_made_here.find(self.path) or MadeHere()).own)
        self._reader = VendorProcess(MODULE, LIBRARY)

    def with_instances(self, spec: PartSpec) -> PartSpec:
        """Return the spec with an instance for every claim that needs one. May block for seconds. Raises
        Unlaunchable."""
        if not any(is_missing(claim) for claim in spec.devices):
            return spec
        return msgspec.structs.replace(spec, devices=[self._made(claim) for claim in spec.devices])

    def _made(self, claim: DeviceClaim) -> DeviceClaim:
        if not is_missing(claim):
            return claim
        assert claim.partition is not None, "it is missing"
        wanted = claim.partition
        question = " ".join(["make", claim.uuid, wanted.profile, str(wanted.start), *sorted(self.own)])
        with self.lock:
            try:
                told = self._reader.ask(question, DEADLINE_S)
            except ReaderSilent as error:
                raise Unlaunchable(_undivided(claim, str(error))) from error
            self.own = self.own.difference(told["gone"]).union([told["uuid"]] if "uuid" in told else [])
            write_whole(self.path, {"own": sorted(self.own)}, sync=True)
        if "error" in told:
            raise Unlaunchable(_undivided(claim, told["error"]))
        partition = msgspec.structs.replace(wanted, uuid=told["uuid"], size=told["size"])
        return msgspec.structs.replace(claim, partition=partition)

    def close(self) -> None:
        self._reader.close()


def is_missing(claim: DeviceClaim) -> bool:
    """Whether a claim is on a partition that has still to be created; a simulated one need not be."""
    return claim.partition is not None and not claim.partition.uuid and not claim.simulated


def _undivided(claim: DeviceClaim, error: str) -> Clause:
    return clause("NotDivided", kind=claim.kind, index=claim.index, error=error)
