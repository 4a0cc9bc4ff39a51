"""Tells collective libraries which network interface of this host leads to the other nodes of a gang.

By default a library takes the first interface that is up, which on a host with several (a container bridge, a
management port) often cannot be reached by the others. Sources: NCCL's and HCCL's environment variables, where ``=``
requests exactly this name, and PyTorch's for Gloo and TensorPipe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

RDMA = Path("/dev/infiniband")


def interface_of(address: str) -> str | None:
    """Return the interface of this host that has the address; None if there is none, or if it is loopback."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.split("%")[0] == address for each in addresses):
            return None if name == "lo" else name
    return None


def variables(address: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the interface of this node's ``address``, without those that the stage has set."""
    name = interface_of(address) if address else None
    if name is None:
        return {}
    told = {
        "NCCL_SOCKET_IFNAME": f"={name}",
        "HCCL_SOCKET_IFNAME": f"={name}",
        "GLOO_SOCKET_IFNAME": name,
        "TP_SOCKET_IFNAME": name,
    }
    return {variable: word for variable, word in told.items() if variable not in given}


def has_rdma() -> bool:
    """Whether stages of this host can access network adapters directly (InfiniBand, RoCE)."""
    return os.path.isdir(RDMA)
