"""What a task sees of its host, and what the kernel holds it to: tried from inside, on the real kernel."""

from __future__ import annotations

import os
import stat
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.devices.files import DriverFiles
from agents.isolation import cgroup
from agents.isolation.level import level
from agents.isolation.run_as import RunAs
from agents.isolation.users import USUAL, Users
from agents.isolation.view import enter, why_not
from agents.protocol import ISOLATION, DeviceClaim, Partition, Phase
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order, stop

Names = Callable[[], str]
MIB = 1 << 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
with_views = pytest.mark.skipif(bool(why_not()), reason=f"no views here: {why_not()}")


@pytest.fixture
def node(model: Yard, open_path: Path) -> Iterator[Hands]:
    """A root agent that gives each project a user, and 60 processes to each task."""
    made = Hands(model, open_path, f"view-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.environment["YARD_AGENT_PROCESSES"] = "60"
    made.start("--uid-range", f"{USUAL[0]}-{USUAL[-1]}")
    yield made
    made.clear()


def _said(node: Hands, part: str) -> list[str]:
    node.yard.ended(node.name, part)
    node.yard.wait(lambda: b"done" in node.yard.logs[(part, 0, "out")])
    return [line.strip() for line in bytes(node.yard.logs[(part, 0, "out")]).decode().split("\n")]


@as_root
@with_views
def test_a_task_sees_its_own_processes_and_its_own_shared_memory(node: Hands, part: Names) -> None:
    one, other = part(), part()
    node.yard.want(
        node.name,
        order(one, "sh", "-c", "echo x > /dev/shm/mine; exec sleep 300", project="a", project_number=1),
    )
    here = node.yard.phase(node.name, one, Phase.RUNNING)
    node.yard.wait(lambda: Path(f"/proc/{here.pid}/root/dev/shm/mine").exists())
    script = (
        "ls /dev/shm | wc -l; df --output=size -B1 /dev/shm | tail -1; stat -c %a /dev/shm;"
        "for p in /proc/[0-9]*; do stat -c %u $p; done | sort -u;"
        f"[ -e /proc/{here.pid} ] && echo seen; [ -e /proc/1 ] && echo seen;"
        "grep -c NoNewPrivs /proc/self/status; umount /dev/shm 2>/dev/null && echo left;"
        "umount /proc 2>/dev/null && echo left; unshare -rm umount /dev/shm 2>/dev/null && echo left; echo done"
    )
    node.yard.want(node.name, order(other, "sh", "-c", script, project="b", project_number=2, memory_bytes=64 * MIB))
    assert _said(node, other)[:6] == ["0", f"{64 * MIB}", "1777", str(USUAL[2]), "1", "done"]
    assert not Path("/dev/shm/mine").exists(), "the host's own stays as it was"


@as_root
@with_views
def test_what_lies_in_shared_memory_counts_and_is_gone_with_the_task(node: Hands, part: Names) -> None:
    full, both = part(), part()
    script = "head -c 100000000 /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill; echo done; exit 7"
    node.yard.want(
        node.name, order(full, "sh", "-c", script, project_number=1, memory_bytes=512 * MIB),
        order(both, "python3", "-c", "f = open('/dev/shm/x', 'wb'); f.write(bytes(48 << 20)); f.flush()\n"
              "held = bytearray(b'x') * (48 << 20)\nimport time; time.sleep(300)",
              project_number=1, memory_bytes=80 * MIB),
    )  # fmt: skip
    assert _said(node, full)[0] == "100000000"
    end = node.yard.ended(node.name, full).exit
    assert end is not None
    assert end.peak_memory_bytes > 0
    end = node.yard.ended(node.name, both).exit
    assert end is not None
    assert end.cause == "OUT_OF_MEMORY", end


@as_root
@with_views
def test_a_task_cannot_write_more_shared_memory_than_it_asked_for(node: Hands, part: Names) -> None:
    name = part()
    script = "head -c 200000000 /dev/zero > /dev/shm/fill; stat -c %s /dev/shm/fill; echo done"
    node.yard.want(node.name, order(name, "sh", "-c", script, project_number=1, memory_bytes=300 * MIB))
    assert int(_said(node, name)[0]) == 200000000
    other = part()
    node.yard.want(node.name, order(other, "sh", "-c", script, project_number=1, memory_bytes=64 * MIB))
    end = node.yard.ended(node.name, other).exit
    said = bytes(node.yard.logs[(other, 0, "out")]).decode().split()
    assert end is not None
    # Either the file system is full, or the kernel counted its pages and ended the command first.
    assert (said and int(said[0]) <= 64 * MIB) or end.cause == "OUT_OF_MEMORY", (said, end)


@as_root
def test_who_fails_at_its_limit_of_processes_is_told_so(node: Hands, part: Names) -> None:
    bomb, quiet = part(), part()
    script = "import os, sys, time\ntry:\n    while os.fork(): pass\nexcept OSError: time.sleep(3); sys.exit(9)\n"
    script += "time.sleep(300)"
    node.yard.want(
        node.name,
        order(bomb, "python3", "-c", script, project_number=1),
        order(quiet, "sh", "-c", "exit 9", project_number=2),
    )
    end = node.yard.ended(node.name, bomb).exit
    assert end is not None
    assert "limit of 60 processes" in end.detail, end
    end = node.yard.ended(node.name, quiet).exit
    assert end is not None
    assert "limit" not in end.detail


@as_root
def test_a_group_below_one_that_systemd_delegated_stands_beside_the_agents_leaf(tmp_path: Path) -> None:
    mounts = cgroup._mounts()
    if cgroup.UNIFIED not in mounts or cgroup.UNIFIED not in cgroup.bases():
        pytest.skip("this host lends no group of cgroup v2")
    unit = Path(cgroup.bases()[cgroup.UNIFIED]) / f"unit-{uuid.uuid4().hex[:8]}"
    leaf = unit / cgroup.LEAF
    leaf.mkdir(parents=True)
    try:
        assert cgroup._lent(str(leaf)) == str(leaf), "nobody delegated it"
        os.setxattr(unit, "user.delegate", b"1")
        assert cgroup._lent(str(leaf)) == str(unit)
        code = f"open('{leaf}/cgroup.procs', 'w').write('0')\n"
        code += "from agents.isolation import cgroup\nprint(cgroup.bases()['unified'])"
        said = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
        assert said.stdout.strip() == str(unit)
    finally:
        leaf.rmdir()
        unit.rmdir()


@as_root
@with_views
def test_a_closed_device_opens_for_nobody_and_the_others_stay(tmp_path: Path) -> None:
    for name in ("one", "two"):
        os.mknod(tmp_path / name, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    child = os.fork()
    if child == 0:
        try:
            enter({"shm_bytes": 0, "closed": [str(tmp_path / "one"), str(tmp_path / "gone")]})
            try:
                os.open(tmp_path / "one", os.O_RDWR)
                os._exit(1)
            except PermissionError:
                os.read(os.open(tmp_path / "two", os.O_RDWR), 1)
                os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(os.open(tmp_path / "one", os.O_RDWR))


def _claim(vendor: str, index: int, uuid_: str = "", **more: object) -> DeviceClaim:
    return DeviceClaim(
        uuid=uuid_ or f"{vendor}-{index}", kind="gpu", vendor=vendor, model="m", index=index, milli=1000,
        memory_bytes=0, **more,
    )  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host's tree with the files of several vendors' drivers."""
    names = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "kfd", "davinci0", "davinci1",
             "vdavinci101", "davinci_manager", "accel/accel0", "accel/accel_controlD0", "accel/accel1", "accel3",
             "null", "dri/card0", "dri/renderD128", "dri/renderD129", "infiniband", "cambricon_dev0",
             "cambricon_ctl"]  # fmt: skip
    for name in names:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    for render, address in (("renderD128", "0000:03:00.0"), ("renderD129", "0000:83:00.0"), ("card0", "0000:03:00.0")):
        (tmp_path / "sys/devices" / address).mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/class/drm" / render).mkdir(parents=True)
        (tmp_path / "sys/class/drm" / render / "device").symlink_to(tmp_path / "sys/devices" / address)
    # The order of the driver's numbers is not that of the library.
    for place, uuid_, minor in (("0000:03:00.0", "GPU-a", 1), ("0000:83:00.0", "GPU-b", 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / place
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 10\nGPU UUID: \t {uuid_}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    return tmp_path


ADDRESSES = {"amd-0": "0000:03:00.0", "amd-1": "0000:83:00.0", "GPU-a": "0000:03:00.0"}


@pytest.mark.parametrize(
    ("claims", "open_"),
    [
        ([], set()),
        ([_claim("nvidia", 0, "GPU-a")], {"nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "dri/card0",
                                          "dri/renderD128"}),
        ([_claim("amd", 1)], {"kfd", "dri/renderD129"}),
        ([_claim("amd", 7)], {"kfd", "dri/renderD128", "dri/renderD129", "dri/card0"}),
        ([_claim("huawei", 1)], {"davinci1", "davinci_manager"}),
        ([_claim("huawei", 1, partition=Partition("vir04", uuid="101"))], {"vdavinci101", "davinci_manager"}),
        ([_claim("habana", 0)], {"accel/accel0", "accel/accel_controlD0"}),
        ([_claim("google", 3)], {"accel3"}),
        ([_claim("google", 3, simulated=True)], set()),
        ([_claim("cambricon", 0), _claim("huawei", 0)],
         {"cambricon_dev0", "cambricon_ctl", "davinci0", "davinci_manager"}),
    ],
)  # fmt: skip
def test_a_task_keeps_the_files_of_what_it_claimed(host: Path, claims: list[DeviceClaim], open_: set[str]) -> None:
    files = DriverFiles(lambda uuid_: ADDRESSES.get(uuid_), host)
    closed = {str(Path(path).relative_to(host / "dev")) for path in files.closed(claims)}
    everything = {str(Path(path).relative_to(host / "dev")) for path in files.closed([])}
    assert closed == everything - open_
    assert not {"null", "infiniband"} & everything


def test_files_that_draw_are_told_only_where_each_is_known(host: Path) -> None:
    files = DriverFiles(lambda uuid_: ADDRESSES.get(uuid_), host)
    assert [Path(path).name for path in files.drawing([_claim("amd", 1)])] == ["renderD129"]
    assert files.drawing([_claim("amd", 7)]) == [], "its address is not known"
    assert files.drawing([_claim("huawei", 0)]) == []
    (host / "dev/dri/card9").touch()
    assert files.drawing([_claim("amd", 1)]) == [], "nobody knows whose the new one is"


@as_root
def test_a_claimed_file_brings_the_group_that_opens_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name, mode, group in (("davinci0", 0o660, 4242), ("davinci1", 0o666, 4243), ("davinci2", 0o660, 0)):
        os.mknod(tmp_path / "dev" / name, mode | stat.S_IFCHR, os.makedev(1, 5))
        os.chmod(tmp_path / "dev" / name, mode)
        os.chown(tmp_path / "dev" / name, 0, group)
    files = DriverFiles(lambda _: None, tmp_path)
    assert files.groups([_claim("huawei", 0)]) == [4242]
    assert files.groups([_claim("huawei", index) for index in range(3)]) == [4242]
    assert files.groups([_claim("huawei", 1)]) == []
    assert files.groups([_claim("huawei", 2)]) == [], "never root's"


def test_each_level_has_all_of_those_before_it() -> None:
    several, one = Users(RunAs("nobody", 65534, 65534), uids=USUAL), Users(RunAs("nobody", 65534, 65534))
    for views in (False, True):
        for limits in (False, True):
            assert level(one, has_views=views, has_limits=limits) == "none"
            found = level(several, has_views=views, has_limits=limits)
            assert ISOLATION.index(found) == 1 + views + (views and limits)


@as_root
def test_a_stop_ends_a_task_with_its_own_view(node: Hands, part: Names) -> None:
    name = part()
    script = "trap 'echo stopped; echo done; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    node.yard.want(node.name, order(name, "sh", "-c", script, project_number=3))
    node.yard.wait(lambda: b"up" in node.yard.logs[(name, 0, "out")])
    node.yard.want(node.name, stop(name, 20.0))
    assert "stopped" in _said(node, name)
