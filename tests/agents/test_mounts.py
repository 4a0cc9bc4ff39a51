"""Which folders a node lets stages mount: below its operator's, by a way that no user can change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation.beneath import OWN, FileRights
from agents.isolation.mounts import MountRefused, MountRoots
from agents.isolation.run_as import RunAs, parse
from agents.isolation.users import Users
from agents.main import parser
from agents.protocol import Mount
from agents.runtimes import engines
from agents.runtimes.engines import Box, Engine

STAGE = FileRights(65534, 65534)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A folder whose way belongs to root, as /data does."""
    folder = Path("/var/tmp") / f"yard-mounts-{os.getpid()}"
    (folder / "images").mkdir(parents=True)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def code(roots: MountRoots, source: object, rights: FileRights = OWN) -> str:
    with pytest.raises(MountRefused) as told:
        roots.real(Mount(str(source), "/in"), rights)
    return told.value.said[0][0]


def test_a_folder_below_the_operators_is_mounted_and_nothing_else(data: Path) -> None:
    roots = MountRoots([str(data)], str(data / "own"))
    (data / "own").mkdir()
    assert roots.real(Mount(f"{data}/images", "/in"), OWN) == Mount(f"{data}/images", "/in")
    assert code(roots, f"{data}/../../etc") == "MountNotAllowed"
    assert code(roots, f"{data}x") == "MountNotAllowed"
    assert code(roots, "/etc") == "MountNotAllowed"
    assert code(roots, data / "missing") == "MountMissing"
    assert code(roots, data / "own") == "MountLeadsOut"
    assert code(MountRoots(), data) == "MountNotAllowed"
    (data / "out").symlink_to("/etc")
    (data / "in").symlink_to("images")
    assert code(roots, data / "out") == "MountLeadsOut"
    assert roots.real(Mount(f"{data}/in", "/in"), OWN).source == f"{data}/images"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_what_a_stage_could_put_in_its_place_is_not_mounted(data: Path) -> None:
    roots = MountRoots([str(data)])
    (data / "theirs" / "sub").mkdir(parents=True)
    os.chown(data / "theirs", STAGE.uid or 0, STAGE.gid or 0)
    assert roots.real(Mount(f"{data}/theirs", "/in"), STAGE).source == f"{data}/theirs"
    assert code(roots, data / "theirs" / "sub", STAGE) == "MountExchangeable"
    (data / "theirs" / "link").symlink_to("/etc")
    assert code(roots, data / "theirs" / "link", STAGE) == "MountExchangeable"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_what_a_stage_of_another_project_could_put_in_its_place_is_not_mounted(data: Path) -> None:
    """Two projects of one person have two users: one asks for the mount, the other exchanges the folder meanwhile."""
    one, other = FileRights(1_900_000_001), FileRights(1_900_000_002)
    account = RunAs("svc", 1234, 1234)
    roots = MountRoots(
        [str(data)], users=Users(parse("nobody"), {"vision": account}, range(1_900_000_000, 1_900_000_100))
    )
    for name, owner in (("theirs", other.uid), ("accounts", account.uid), ("persons", 4321)):
        (data / name / "sub").mkdir(parents=True)
        os.chown(data / name, owner or 0, owner or 0)
        assert roots.real(Mount(f"{data}/{name}", "/in"), one).source == f"{data}/{name}"
    assert code(roots, data / "theirs" / "sub", one) == "MountExchangeable"
    assert code(roots, data / "accounts" / "sub", one) == "MountExchangeable"
    assert roots.real(Mount(f"{data}/persons/sub", "/in"), one).source == f"{data}/persons/sub"
    (data / "shared" / "sub").mkdir(parents=True)
    os.chown(data / "shared", 0, other.uid or 0)
    os.chmod(data / "shared", 0o775)
    assert code(roots, data / "shared" / "sub", one) == "MountExchangeable"
    (data / "sticky" / "sub").mkdir(parents=True)
    os.chmod(data / "sticky", 0o1777)
    assert roots.real(Mount(f"{data}/sticky/sub", "/in"), one).source == f"{data}/sticky/sub"
    os.chown(data / "sticky" / "sub", other.uid or 0, 0)
    assert code(roots, data / "sticky" / "sub", one) == "MountExchangeable"


def test_a_folder_in_which_the_agents_own_lies_is_not_mounted(data: Path) -> None:
    """Where the agent is no root, its user owns what it keeps there: secrets of other stages, and its credentials."""
    (data / "lib" / "agent").mkdir(parents=True)
    (data / "link").symlink_to("lib/agent")
    for own in (data / "lib" / "agent", data / "link"):
        roots = MountRoots([str(data)], str(own))
        assert code(roots, data) == code(roots, data / "lib") == "MountHolds"
        assert roots.real(Mount(f"{data}/images", "/in"), OWN).source == f"{data}/images"
    assert code(MountRoots(["/var"]), "/var") == "MountHolds"


@pytest.mark.parametrize("name", [engines.PODMAN, engines.DOCKER])
def test_engines_are_told_of_mounts(name: str) -> None:
    mounts = [Mount("/data/a", "/in"), Mount("/data/b", "/out", readonly=False)]
    box = Box(name="b", image="i", argv=["true"], env_file="/e", cwd="/w", mounts=mounts)
    words = engines.lines(Engine(name, f"/usr/bin/{name}"), box).create
    assert "--mount=type=bind,source=/data/a,target=/in,readonly" in words
    assert "--mount=type=bind,source=/data/b,target=/out" in words
    assert not engines.unusable(box)
    assert engines.unusable(Box(name="b", image="i", argv=[], env_file="/e", cwd="/w", mounts=[Mount("/a,b", "/c")]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes mount namespaces")
def test_in_a_view_each_folder_is_written_or_not_as_its_own_mount_says(data: Path) -> None:
    """Also one that may be written in one that may not, and the other way round."""
    (data / "images" / "out" / "kept").mkdir(parents=True)
    mounts = [(str(data / "images"), True), (str(data / "images/out"), False), (str(data / "images/out/kept"), True)]
    program = f"""
import os
from agents.isolation.view import enter
enter({{"mounts": {mounts!r}}})
for path, _ in {mounts!r}:
    try:
        open(path + "/x", "w")
        print("written")
    except OSError as error:
        print(os.strerror(error.errno))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.splitlines()[-1]}")
    assert done.stdout.splitlines() == ["Read-only file system", "written", "Read-only file system"], done.stderr


@pytest.mark.parametrize("folder", ["/", "/etc/x", "data", "/data/../etc"])
def test_no_folder_of_the_system_is_declared(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--url", "http://127.0.0.1", "--mount", folder])
    assert "is no folder that stages may mount" in capsys.readouterr().err
