"""The pods and nodes of Alibaba's GPU cluster as published with FGD (Weng et al., ATC 2023): ``openb``.

Nodes: ``sn``, ``cpu_milli``, ``memory_mib``, ``gpu`` (how many) and ``model``. Pods: ``name``, ``cpu_milli``,
``memory_mib``, ``num_gpu``, ``gpu_milli`` (of each GPU) and ``gpu_spec``, the models it may run on, joined by ``|``;
empty is any. Pods without a GPU are included. The trace is used for requests; its times play no part in placement
studies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.sentences import _
from scheduler.core.model.types import Alternative, Ask, Device, Node
from scheduler.sim.traces.table import TraceColumn, TraceError, read_table

MIB: Final = 2**20
NODE_COLUMNS: Final = (
    TraceColumn("sn"),
    TraceColumn("cpu_milli", "whole", least=1, most=1e9),
    TraceColumn("memory_mib", "whole", least=1, most=1e9),
    TraceColumn("gpu", "whole", most=64),
    TraceColumn("model", required=False, default=""),
)
POD_COLUMNS: Final = (
    TraceColumn("name"),
    TraceColumn("cpu_milli", "whole", least=1, most=1e9),
    TraceColumn("memory_mib", "whole", most=1e9),
    TraceColumn("num_gpu", "whole", most=64),
    TraceColumn("gpu_milli", "whole", most=1000),
    TraceColumn("gpu_spec", required=False, default=""),
)


@dataclass(frozen=True, slots=True)
class Pod:
    """The request of one pod on one node. ``models`` are the GPU models it may run on; empty is any."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def gpu_total_milli(self) -> int:
        return self.gpus * self.gpu_milli

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return the same as alternatives of a stage, one for each model."""
        host = Ask("cpu", 1, self.cpu_milli, self.memory_bytes)
        if not self.gpus:
            return (Alternative(0, (host,)),)
        return tuple(
            Alternative(index, (Ask("gpu", self.gpus, self.gpu_milli, model=model), host))
            for index, model in enumerate(self.models or ("",))
        )


def nodes(source: str | Path | Iterable[str], pool: str = "default") -> tuple[Node, ...]:
    """Return the machines, each with one CPU device. GPU memory is not in the trace and is 0."""
    found = []
    for row in read_table(source, NODE_COLUMNS, key="sn").rows:
        name, model = row["sn"], row["model"]
        host = Device(f"{name}/cpu0", name, "cpu", "", "", 0, row["memory_mib"] * MIB, row["cpu_milli"])
        cards = [Device(f"{name}/gpu{i}", name, "gpu", "nvidia", model, i, 0) for i in range(row["gpu"])]
        found.append(Node(name, name, NodeState.READY, (pool,), (host, *cards)))
    return tuple(found)


def pods(source: str | Path | Iterable[str]) -> tuple[Pod, ...]:
    """Return the pods in the order of the file. Raises :class:`TraceError` for one with GPUs but no share of them."""
    found = []
    for row in read_table(source, POD_COLUMNS, key="name").rows:
        gpus, share = row["num_gpu"], row["gpu_milli"]
        if gpus and not share:
            raise TraceError(row.line, "gpu_milli", _("is 0 although num_gpu is not; it must be from 1 to 1000 then"))
        if gpus > 1 and share != 1000:
            raise TraceError(
                row.line, "gpu_milli", _('"{value}" must be 1000 where num_gpu is above 1').format(value=share)
            )
        models = tuple(word for word in row["gpu_spec"].split("|") if word)
        found.append(Pod(row["name"], row["cpu_milli"], row["memory_mib"] * MIB, gpus, share if gpus else 0, models))
    return tuple(found)
