"""The links between AMD GPUs, as the kernel's compute driver lists them below ``/sys/class/kfd``.

Format: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h (type 11 of a link is XGMI; bandwidths are in
MB/s).
"""

from __future__ import annotations

from agents.devices.vendors import ProbedHost
from agents.protocol import Link

_NODES = "sys/class/kfd/kfd/topology/nodes"
_XGMI = 11


def links(host: ProbedHost) -> dict[str, tuple[Link, ...]]:
    """Return the XGMI links of each GPU, both by PCI address; ``gbps`` is in GB/s."""
    nodes = {folder.name: folder for folder in (host.root / _NODES).glob("*") if folder.name.isdigit()}
    addresses = {name: _address(_properties(host, f"{_NODES}/{name}/properties")) for name in nodes}
    found: dict[str, tuple[Link, ...]] = {}
    for name, folder in nodes.items():
        here = addresses[name]
        if here is None:
            continue  # a CPU
        told = []
        for link in sorted((folder / "io_links").glob("*")):
            fields = _properties(host, f"{_NODES}/{name}/io_links/{link.name}/properties")
            peer = addresses.get(str(fields.get("node_to", "")))
            if fields.get("type") == _XGMI and peer is not None and peer != here:
                megabytes_per_s = fields.get("max_bandwidth", 0)
                told.append(Link(peer, "XGMI", megabytes_per_s / 1000 if megabytes_per_s else None))
        found[here] = tuple(told)
    return found


def _properties(host: ProbedHost, path: str) -> dict[str, int]:
    """Parse lines of a name and a number."""
    pairs = (line.split() for line in host.text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _address(node: dict[str, int]) -> str | None:
    """Return the PCI address of a GPU; None for a node that has no compute units of one."""
    place = node.get("location_id", 0)
    if not node.get("simd_count") or not place or place > 0xFFFF:
        return None
    return f"{node.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
