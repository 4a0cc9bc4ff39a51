"""How the command line says which partition a stage holds."""

from __future__ import annotations

from switchyard.cli import units


def test_a_partition_is_said_with_its_device_and_slot():
    gpu = {"kind": "gpu", "index": 2, "partition": "1g.10gb", "slot": 3}
    cpu = {"kind": "cpu", "index": 0, "partition": None, "slot": None}
    assert units.placed({"placed": [{"node": "g07", "devices": [cpu, gpu]}]}) == "g07 gpu2 1g.10gb@3"
    assert units.placed({"placed": [{"node": "g07", "devices": [{**gpu, "slot": None}]}]}) == "g07 gpu2 1g.10gb"
    assert units.placed({"placed": [{"node": "g07", "devices": [{"kind": "gpu", "index": 2}]}]}) == "g07 gpu2"
