"""Describes a gang to its processes: host file, topology, collective back-end, and Ascend's rank table.

Pure but for :func:`write`. The rank table follows Huawei, "HCCL user guide", chapter "Rank table" (version 1.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from agents.protocol import Device, GangMember, GangPeer, PartSpec
from agents.tasks import fabric, setup

BACKENDS: Final[Mapping[str, str]] = {
    "nvidia": "nccl",
    "amd": "nccl",  # RCCL, under the name that PyTorch gives it
    "huawei": "hccl",
    "intel": "xccl",
    "habana": "hccl",
    "cambricon": "cncl",
    "mthreads": "mccl",
    "google": "xla",
}
_ADDRESS = re.compile(r"^address_(\d{1,5})=(\S+)$", re.MULTILINE)

# Starts one process per device under a POSIX shell: $1 local processes, $2 rank of the first, $3 processes of the gang.
# The first failure ends the others, and its exit code is that of all; a stop is passed on to each process, once.
#
# A signal to a shell's child between fork and exec is lost: the shell's handler receives it, and exec discards it. So a
# child is forked while TERM is ignored, restores the default action, reports that, and only then executes the command;
# no child is signalled before it has reported. Signals that a wrapper itself misses meanwhile are sent again.
PER_DEVICE: Final = """
count=$1 first=$2 total=$3; shift 3
verdict=${TMPDIR:-/tmp}/.first-failure over=${TMPDIR:-/tmp}/.over
rm -f "$over"
one() {
    asked= told= listens=${TMPDIR:-/tmp}/.listens-$LOCAL_RANK
    rm -f "$listens"
    trap '' TERM
    trap - USR1 USR2
    ( trap - TERM; true > "$listens"; exec "$@" ) & child=$!
    trap 'asked=1' TERM
    while kill -0 $child 2>/dev/null; do
        [ -z "$asked" ] || pass_on
        wait $child; code=$?
    done
    # It may have been reaped while something else was waited for: its code is known all the same.
    wait $child 2>/dev/null; again=$?; [ $again -eq 127 ] || code=$again
    case $code in
        0) ;;
        75|85) ( set -C; echo "$RANK $code" > "$verdict" ) 2>/dev/null ;;
        *) ( set -C; echo "$RANK $code" > "$verdict" ) 2>/dev/null && kill -USR1 $$ ;;
    esac
    exit $code
}
pass_on() {
    [ -z "$told" ] || return
    tries=0
    # On a full disk it cannot say that it listens; it has had its time to, then.
    while [ ! -e "$listens" ] && [ $tries -lt 100 ] && kill -0 $child 2>/dev/null; do
        tries=$((tries + 1)); sleep 0.05
    done
    told=1
    kill -TERM $child 2>/dev/null
}
ask() {
    asked=1
    for each in $all; do kill -TERM $each 2>/dev/null; done
    [ -z "$insisting" ] || return
    insisting=1
    # It ends by itself: just forked, it would lose a signal too.
    while sleep 0.5 && [ ! -e "$over" ] && kill -USR2 $$ 2>/dev/null; do :; done &
}
all= asked= insisting=
# Nothing is forked in a trap yet: it would take the place of what $! is to tell.
trap 'asked=1' TERM USR1 USR2
local_rank=0
while [ $local_rank -lt $count ] && [ -z "$asked" ]; do
    export RANK=$((first + local_rank)) LOCAL_RANK=$local_rank WORLD_SIZE=$total LOCAL_WORLD_SIZE=$count
    export OMPI_COMM_WORLD_RANK=$RANK OMPI_COMM_WORLD_LOCAL_RANK=$LOCAL_RANK
    export OMPI_COMM_WORLD_SIZE=$total OMPI_COMM_WORLD_LOCAL_SIZE=$count
    one "$@" &
    all="$all $!"
    local_rank=$((local_rank + 1))
done
trap ask TERM USR1 USR2
[ -z "$asked" ] || ask
for pid in $all; do
    while kill -0 $pid 2>/dev/null; do wait $pid 2>/dev/null; done
done
true > "$over"
if [ -e "$verdict" ]; then
    read -r rank code < "$verdict"
    echo "switchyard: rank $rank ended with exit code $code" >&2
    exit "$code"
fi
"""


def members(spec: PartSpec) -> list[GangMember]:
    """Return every node of the gang in rank order; a stage on one node is a gang of one."""
    if spec.gang:
        return spec.gang
    peers = [GangPeer(claim.kind, claim.vendor, claim.index) for claim in spec.devices if not claim.simulated]
    return [GangMember(spec.nodes[0] if spec.nodes else "", spec.master_addr, peers)]


def processes_per_node(spec: PartSpec) -> int:
    return max(1, sum(claim.kind != "cpu" for claim in spec.devices))


def command(spec: PartSpec) -> list[str]:
    """Return the command to execute: that of the stage, or a launcher of one such process per device; after its
    setup."""
    argv = spec.setup.argv if spec.setup else spec.argv
    if spec.launcher == "per-device":
        count = processes_per_node(spec)
        numbers = [str(count), str(count * spec.rank), str(count * max(1, len(spec.nodes)))]
        argv = ["/bin/sh", "-c", PER_DEVICE, "launch", *numbers, *argv]
    return setup.command(spec.setup.script, argv) if spec.setup else argv


def backend(spec: PartSpec) -> str:
    """Return the back-end for collectives among all devices of the gang; gloo if they are of several vendors."""
    vendors = {peer.vendor.lower() for member in members(spec) for peer in member.devices if peer.kind != "cpu"}
    return BACKENDS.get(vendors.pop(), "gloo") if len(vendors) == 1 else "gloo"


def host_file(spec: PartSpec) -> str:
    """Format ``<address> slots=<processes>``, one node a line, as MPI launchers and DeepSpeed read it."""
    slots = processes_per_node(spec)
    return "".join(f"{member.address or member.name} slots={slots}\n" for member in members(spec))


def topology(spec: PartSpec) -> dict[str, Any]:
    """Return the nodes in rank order, each with its address and devices."""
    listed = [{"rank": rank, **msgspec.to_builtins(member)} for rank, member in enumerate(members(spec))]
    return {"rank": spec.rank, "nodes": listed}


def rank_table(spec: PartSpec) -> dict[str, Any] | None:
    """Return the table that HCCL reads; None unless every node of the gang has Ascend devices."""
    servers: list[dict[str, Any]] = []
    rank = 0
    for member in members(spec):
        chips = [peer for peer in member.devices if peer.vendor.lower() == "huawei" and peer.kind != "cpu"]
        if not chips:
            return None
        devices = []
        for chip in chips:
            known = {"device_ip": chip.address} if chip.address else {}
            devices.append({"device_id": str(chip.index), **known, "rank_id": str(rank)})
            rank += 1
        servers.append({"server_id": member.address, "device": devices, "host_nic_ip": "reserve"})
    return {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed"}


def _places(scratch: Path) -> dict[str, Path]:
    folder = scratch / ".yard"
    return {
        "YARD_HOSTFILE": folder / "hostfile",
        "YARD_TOPOLOGY_FILE": folder / "topology.json",
        "RANK_TABLE_FILE": folder / "rank_table.json",
    }


def has_company(spec: PartSpec) -> bool:
    """Whether the processes need a topology; a stage without accelerators on one node is a single process."""
    return len(members(spec)) > 1 or any(claim.kind != "cpu" for claim in spec.devices)


def variables(spec: PartSpec, scratch: Path) -> dict[str, str]:
    """Return the variables of the gang. A rank table that the user has set is kept."""
    if not has_company(spec):
        return {"YARD_COMM_BACKEND": backend(spec)}
    places = _places(scratch)
    named = {name: str(path) for name, path in places.items() if name != "RANK_TABLE_FILE"}
    if rank_table(spec) is not None and "RANK_TABLE_FILE" not in spec.env:
        named["RANK_TABLE_FILE"] = str(places["RANK_TABLE_FILE"])
    return {**named, **_towards_others(spec), "YARD_COMM_BACKEND": backend(spec)}


def _towards_others(spec: PartSpec) -> dict[str, str]:
    if len(spec.gang) < 2 or spec.rank >= len(spec.gang):
        return {}
    return fabric.variables(spec.gang[spec.rank].address, spec.env)


def write(spec: PartSpec, scratch: Path) -> None:
    """Write the files that the variables name. Raises OSError."""
    if not has_company(spec):
        return
    places = _places(scratch)
    table = rank_table(spec)
    contents = {"YARD_HOSTFILE": host_file(spec), "YARD_TOPOLOGY_FILE": json.dumps(topology(spec), indent=1)}
    if table is not None:
        contents["RANK_TABLE_FILE"] = json.dumps(table, indent=1)
    places["YARD_HOSTFILE"].parent.mkdir(mode=0o755, exist_ok=True)
    for name, content in contents.items():
        places[name].write_text(content)
        places[name].chmod(0o644)


def device_addresses(configuration: str) -> dict[int, str]:
    """Return the address of each Ascend chip's own network port by the chip's index, from ``/etc/hccn.conf``."""
    return {int(index): address for index, address in _ADDRESS.findall(configuration)}


def with_addresses(devices: list[Device], configuration: Path = Path("/etc/hccn.conf")) -> list[Device]:
    """Return the devices; Ascend chips have their addresses from the host's configuration."""
    if not any(device.vendor.lower() == "huawei" and device.kind != "cpu" for device in devices):
        return devices
    try:
        known = device_addresses(configuration.read_text())
    except OSError:
        return devices
    return [
        msgspec.structs.replace(device, attributes={**device.attributes, "device_ip": known[device.index]})
        if device.vendor.lower() == "huawei" and device.kind != "cpu" and device.index in known
        else device
        for device in devices
    ]
