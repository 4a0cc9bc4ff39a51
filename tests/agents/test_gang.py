"""A gang finds itself: by torchrun's variables, by a host file, by Ascend's rank table, or one process per device."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from agents.protocol import Device, DeviceClaim, GangMember, GangPeer, PartSpec, Setup
from agents.tasks import fabric, gang
from agents.tasks.environment import PartPaths, environment
from tests.agents.conftest import Hands
from tests.agents.test_process import output, ran
from tests.agents.yard import order, stop

Names = Callable[[], str]


def member(name: str, *indexes: int, vendor: str = "huawei", address: str = "") -> GangMember:
    kind = "npu" if vendor == "huawei" else "gpu"
    peers = [GangPeer(kind, vendor, index, f"192.168.{len(name)}.{index}") for index in indexes]
    return GangMember(name, address or f"10.0.0.{len(name)}", peers)


def claims(*indexes: int, vendor: str = "huawei", simulated: bool = False) -> list[DeviceClaim]:
    kind = "npu" if vendor == "huawei" else "gpu"
    return [DeviceClaim(f"{vendor}-{index}", kind, vendor, "m", index, 1000, 1, simulated) for index in indexes]


def spec(*members: GangMember, rank: int = 0, **changes: object) -> PartSpec:
    made = order("p", "train").spec
    assert made is not None
    mine = [peer.index for peer in members[rank].devices] if members else []
    vendor = members[rank].devices[0].vendor if members and mine else "huawei"
    fields = {"nodes": [m.name for m in members], "gang": list(members), "devices": claims(*mine, vendor=vendor)}
    return msgspec.structs.replace(made, **{**fields, "rank": rank, **changes})


def test_the_rank_table_numbers_every_chip_once_in_the_order_of_the_nodes() -> None:
    table = gang.rank_table(spec(member("a", 4, 5), member("bb", 0, 1)))
    assert table is not None
    assert (table["version"], table["server_count"], table["status"]) == ("1.0", "2", "completed")
    assert [server["server_id"] for server in table["server_list"]] == ["10.0.0.1", "10.0.0.2"]
    assert table["server_list"][0]["device"] == [
        {"device_id": "4", "device_ip": "192.168.1.4", "rank_id": "0"},
        {"device_id": "5", "device_ip": "192.168.1.5", "rank_id": "1"},
    ]
    assert [device["rank_id"] for device in table["server_list"][1]["device"]] == ["2", "3"]


def test_all_ranks_are_given_the_same_table() -> None:
    members = (member("a", 0), member("bb", 3))
    assert gang.rank_table(spec(*members, rank=0)) == gang.rank_table(spec(*members, rank=1))


def test_there_is_no_rank_table_for_other_or_simulated_devices() -> None:
    assert gang.rank_table(spec(member("a", 0), member("bb", 0, vendor="nvidia"))) is None
    assert gang.rank_table(spec(devices=claims(0, simulated=True))) is None
    assert gang.rank_table(spec(devices=claims(0))) is not None


def test_the_host_file_has_a_slot_per_device() -> None:
    assert gang.host_file(spec(member("a", 0, 1), member("bb", 2, 3))) == "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"


@pytest.mark.parametrize(
    ("vendors", "name"),
    [(["nvidia", "nvidia"], "nccl"), (["huawei", "huawei"], "hccl"), (["nvidia", "huawei"], "gloo"), ([], "gloo")],
)
def test_collectives_go_through_the_makers_library_or_gloo(vendors: list[str], name: str) -> None:
    members = [member("n" * (i + 1), 0, vendor=vendor) for i, vendor in enumerate(vendors)]
    assert gang.backend(spec(*members)) == name


def test_a_rank_table_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    mine = order("p", "train", gang=[member("a", 0), member("bb", 0)], env={"RANK_TABLE_FILE": "/mine.json"})
    assert environment(mine, PartPaths(tmp_path), {}, None, "/")["RANK_TABLE_FILE"] == "/mine.json"


def test_the_variables_name_files_that_are_written(tmp_path: Path) -> None:
    both = spec(member("a", 0), member("bb", 1), rank=1)
    gang.write(both, tmp_path)
    named = gang.variables(both, tmp_path)
    assert json.loads(Path(named["RANK_TABLE_FILE"]).read_text()) == gang.rank_table(both)
    told = json.loads(Path(named["YARD_TOPOLOGY_FILE"]).read_text())
    assert (told["rank"], [node["name"] for node in told["nodes"]]) == (1, ["a", "bb"])
    assert Path(named["YARD_HOSTFILE"]).read_text() == gang.host_file(both)


def test_the_address_of_a_chip_is_what_the_host_configured(tmp_path: Path) -> None:
    conf = tmp_path / "hccn.conf"
    conf.write_text("address_0=192.168.100.101\nnetmask_0=255.255.255.0\naddress_1=192.168.101.101\n")
    found = [Device(f"d{i}", kind, vendor, "m", i, 1) for i, kind, vendor in [(1, "npu", "huawei"), (0, "cpu", "x")]]
    told = gang.with_addresses(found, conf)
    assert [device.attributes for device in told] == [{"device_ip": "192.168.101.101"}, {}]
    assert gang.with_addresses(found, tmp_path / "none") == found


def test_libraries_are_told_the_interface_that_leads_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "ib0": "10.0.0.2", "eth0": "192.168.1.2"}
    known = {name: [SimpleNamespace(family=socket.AF_INET, address=address)] for name, address in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: known)
    both = spec(member("a", 0), member("bb", 1), rank=1)
    named = gang.variables(both, tmp_path)
    assert (named["NCCL_SOCKET_IFNAME"], named["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")
    own = msgspec.structs.replace(both, env={"NCCL_SOCKET_IFNAME": "eth9"})
    assert "NCCL_SOCKET_IFNAME" not in gang.variables(own, tmp_path), "who knows better is left alone"
    alone = spec(member("a", 0))
    assert "GLOO_SOCKET_IFNAME" not in gang.variables(alone, tmp_path)
    for address in ("127.0.0.1", "10.9.9.9", "", "a-host-name"):
        assert fabric.variables(address, {}) == {}


def test_an_address_of_this_host_has_its_interface() -> None:
    for name, found in psutil.net_if_addrs().items():
        for each in found:
            if each.family in (socket.AF_INET, socket.AF_INET6) and name != "lo":
                assert fabric.interface_of(each.address.split("%")[0]) is not None


# -- one process per device, with a real agent

SAY = 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE"'


def per_device(hands: Hands, name: str, script: str, **changes: object) -> None:
    devices = claims(0, 1, 2, vendor="nobody")
    hands.yard.want(hands.name, order(name, "sh", "-c", script, launcher="per-device", devices=devices, **changes))


def test_one_process_per_device_knows_its_rank(shared: Hands, part: Names) -> None:
    name = part()
    per_device(shared, name, SAY, nodes=["a", "b"], rank=1)
    shared.yard.ended(shared.name, name)
    shared.yard.wait(lambda: shared.yard.logs[(name, 1, "out")].count(b"\n") == 3)
    lines = sorted(shared.yard.logs[(name, 1, "out")].decode().splitlines())
    assert lines == ["3 of 6, 0 of 3", "4 of 6, 1 of 3", "5 of 6, 2 of 3"]


def test_the_first_process_that_fails_ends_the_others_and_is_named(shared: Hands, part: Names) -> None:
    name = part()
    per_device(shared, name, "[ $RANK = 1 ] && exit 7; while :; do sleep 0.05; done")
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (7, "EXIT_CODE")
    assert "rank 1 ended with exit code 7" in output(shared, name, "err")


def test_a_process_that_saved_and_left_does_not_hurry_the_others(shared: Hands, part: Names) -> None:
    name = part()
    script = 'trap "echo hurried" TERM; [ $RANK = 1 ] && exit 85; sleep 0.4; echo calm'
    per_device(shared, name, script)
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert end.cause == "CHECKPOINTED"
    assert output(shared, name).splitlines() == ["calm", "calm"]


def test_a_stop_reaches_every_process(shared: Hands, part: Names) -> None:
    name = part()
    per_device(shared, name, 'trap "echo stopped $RANK; exit 0" TERM; echo up; while :; do sleep 0.02; done')
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")].count(b"up") == 3)
    # A grace that no load of the machine uses up: what is missed would hang, and be seen.
    shared.yard.want(shared.name, stop(name, 60.0))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.stopped) == (0, True)
    assert sorted(output(shared, name).splitlines()) == ["stopped 0", "stopped 1", "stopped 2", "up", "up", "up"]


@pytest.mark.parametrize("after_ms", [0, 3, 8, 15, 30, 60])
def test_a_stop_at_any_moment_of_the_start_ends_all_and_asks_each_that_listens_once(
    tmp_path: Path, after_ms: int
) -> None:
    script = 'trap "echo stopped $RANK; exit 0" TERM; echo up $RANK; while :; do sleep 0.02; done'
    words = ["/bin/sh", "-c", gang.PER_DEVICE, "launch", "3", "0", "3", "sh", "-c", script]
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        time.sleep(after_ms / 1000)
        launcher.send_signal(signal.SIGTERM)
        # The pipe closes with the last process that holds it: nobody is left.
        said = launcher.communicate(timeout=60)[0].splitlines()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
    heard = sorted(line.removeprefix("stopped ") for line in said if line.startswith("stopped "))
    listening = sorted(line.removeprefix("up ") for line in said if line.startswith("up "))
    assert heard == sorted(set(heard))
    assert set(listening) <= set(heard)


def test_a_plain_command_is_left_as_it_is(shared: Hands, part: Names) -> None:
    assert gang.command(spec()) == ["train"]
    assert ran(shared, part(), "true").code == 0


# -- setup


def with_setup(hands: Hands, name: str, setup: str, command: str, **changes: object) -> None:
    made = Setup(setup, ["/bin/sh", "-c", command])
    wanted = order(name, "x", **changes)
    assert wanted.spec is not None
    hands.yard.want(
        hands.name, msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, argv=[], setup=made))
    )


def test_a_setup_runs_first_in_the_same_folder_and_is_marked_in_the_log(shared: Hands, part: Names) -> None:
    name = part()
    with_setup(shared, name, "echo made > left; echo loud >&2", 'cat left; echo "$YARD_STAGE"')
    end = shared.yard.ended(shared.name, name)
    assert end.exit is not None
    assert (end.exit.code, end.exit.cause) == (0, "")
    assert end.progress is not None
    assert end.progress.phase == ""
    lines = output(shared, name).splitlines()
    assert lines == ["switchyard: setup begins", "loud", "switchyard: setup ended", "made", "train"]


@pytest.mark.parametrize("code", [3, 85])
def test_a_setup_that_fails_has_a_cause_of_its_own_and_starts_no_command(shared: Hands, part: Names, code: int) -> None:
    name = part()
    with_setup(shared, name, f"exit {code}", "echo command")
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.cause, end.said) == (code, "SETUP_FAILED", [("SetupFailed", {"code": code})])
    assert "command" not in output(shared, name)


def test_a_setup_runs_once_on_a_node_with_a_process_for_each_device(shared: Hands, part: Names) -> None:
    name = part()
    devices = claims(0, 1, 2, vendor="nobody")
    with_setup(shared, name, "echo once", "echo each", launcher="per-device", devices=devices)
    shared.yard.ended(shared.name, name)
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")].count(b"each") == 3)
    assert shared.yard.logs[(name, 0, "out")].count(b"once") == 1


def test_a_setup_counts_in_the_time_limit(shared: Hands, part: Names) -> None:
    name = part()
    with_setup(shared, name, "while :; do sleep 0.05; done", "echo command", time_limit_s=0.3, grace_s=0.5)
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert end.cause == "TIMEOUT"
