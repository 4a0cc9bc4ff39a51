"""Folders that a job can write: root makes, reads, removes and gives away in them without being led anywhere else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.isolation import beneath
from agents.isolation.beneath import FileRights, Folder, anchor, make
from agents.isolation.run_as import RunAs
from agents.link.server import Server
from agents.protocol import PartSpec
from agents.storage import checkpoint_watch, checkpoints, manifest
from agents.storage.content_store import ContentStore
from agents.storage.fetch import Fetcher
from agents.storage.manifest import UnfitFile
from agents.storage.staging import NOTE, Staging, Unfetched, _place
from agents.supervisor.record import write_whole
from agents.supervisor.saving import signature
from agents.supervisor.small_file import content
from agents.supervisor.stream import OutputStream
from tests.agents.conftest import ROOT


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every law holds for both ways of opening: the kernel's own, and the walk of kernels that have none."""
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "_lacks_openat2", True)
    elif beneath._lacks_openat2:
        pytest.skip("this kernel has no openat2")
    return str(request.param)


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root (run the tests as root)")
# Becomes nobody, then does one thing over and over, as a hostile stage does while root works.
# What it imports it imports before: it may not be able to read this Python.
BECOME = "import ctypes, os; os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"


@pytest.fixture
def job() -> Iterator[FileRights]:
    """The rights of the stages' user; the groups of the tests' own process are as an agent's are."""
    groups = os.getgroups()
    os.setgroups([])
    yield FileRights(NOBODY, NOBODY)
    os.setgroups(groups)


def owned(path: Path) -> Path:
    """A folder of the stages' user."""
    path.mkdir(parents=True)
    os.chown(path, NOBODY, NOBODY)
    return path


def secret(path: Path) -> Path:
    """A file that only root may read, as the credential of a node is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"credential": "yard_secret"}')
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def tug(folder: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's repeats a piece of Python in a folder, through the block."""
    body = "".join(f"    {line}\n" for line in script.strip().splitlines())
    program = f"{BECOME}os.chdir({str(folder)!r})\nprint('up', flush=True)\nwhile True:\n{body}"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


# -- rights


@as_root
def test_a_thread_with_a_users_rights_reads_what_that_user_may_and_no_other_thread_is_touched(
    job: FileRights, open_path: Path
) -> None:
    hidden = secret(open_path / "node.json")
    with job:
        with pytest.raises(PermissionError):
            hidden.read_text()
        with pytest.raises(PermissionError):
            (open_path / "made").mkdir()
    assert hidden.read_text()
    seen: list[str] = []
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        seen.append(hidden.read_text())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with job:
        go.set()
        assert done.wait(30)
    thread.join()
    assert seen


@as_root
def test_rights_are_not_taken_twice_nor_with_groups_of_somebody_else(job: FileRights) -> None:
    with job, pytest.raises(PermissionError, match="another user's rights already"), FileRights(1, 1):
        pass
    os.setgroups([0])
    with pytest.raises(PermissionError, match="groups that uid 65534 has not"), job:
        pass
    assert Path("/proc/self/status").read_text().partition("Uid:")[2].split()[3] == "0"


# -- folders that root makes


@as_root
def test_what_leads_to_a_stages_folder_belongs_to_root_and_only_the_folder_to_the_stage(
    job: FileRights, open_path: Path
) -> None:
    leaf = open_path / "shared" / "7" / "checkpoints" / "train"
    make(str(leaf), job)
    make(str(leaf), job)
    assert [leaf.parents[up].stat().st_uid for up in range(3)] == [0, 0, 0]
    assert leaf.stat().st_uid == NOBODY
    with job, pytest.raises(PermissionError):
        (open_path / "shared" / "7").rename(open_path / "shared" / "8")
    link = open_path / "by-link"
    link.symlink_to(open_path / "shared")  # an operator's, on the way there
    make(str(link / "8" / "outputs" / "prep"), job)
    assert (open_path / "shared" / "8").stat().st_uid == 0


@as_root
@pytest.mark.parametrize("swapped", ["7", "7/checkpoints", "7/checkpoints/yaml"])
def test_a_link_that_a_stage_put_on_the_way_leads_root_nowhere(job: FileRights, open_path: Path, swapped: str) -> None:
    """The storage is the stages' user's, as it was by default: no way there is safe, so it is gone as that user."""
    checkout = open_path / "checkout"
    checkout.mkdir()
    storage = owned(open_path / "shared")
    with job:
        (storage / swapped).parent.mkdir(parents=True, exist_ok=True)
        (storage / swapped).symlink_to(checkout)
    path = storage / "7" / "checkpoints" / "yaml"
    if swapped.endswith("yaml"):
        make(str(path), job)  # it leads to a folder, which is there, and stays whose it was
    else:
        with pytest.raises(PermissionError, match="checkpoints/yaml"):
            make(str(path), job)
    assert list(checkout.iterdir()) == []
    assert checkout.stat().st_uid == 0


@as_root
@pytest.mark.parametrize("step", ["7", "7/checkpoints"])
def test_a_folder_that_turns_into_a_link_and_back_while_root_walks_leads_it_nowhere(
    job: FileRights, open_path: Path, step: str
) -> None:
    checkout = open_path / "checkout"
    checkout.mkdir()
    storage = owned(open_path / "shared")
    with job:
        (storage / step).mkdir(parents=True)
    with job:
        (storage / "aside").symlink_to(checkout)
    # One takes the other's place in one step: there is never neither.
    swap = f"""
assert ctypes.CDLL(None).renameat2(-100, {step!r}.encode(), -100, b"aside", 2) == 0
"""
    met = made = 0
    with tug(storage, swap) as racer:
        # Until the link was there so often a moment before.
        while met < 300 or not made:
            assert racer.poll() is None
            met += (storage / step).is_symlink()
            with contextlib.suppress(OSError):
                make(str(storage / "7" / "checkpoints" / f"yaml-{met}-{made}"), job)
                made += 1
    assert list(checkout.iterdir()) == []


def status(uid: int, mode: int, gid: int = 0) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


def test_who_may_change_a_folder_and_replace_what_is_in_it() -> None:
    user = FileRights(NOBODY, NOBODY, (100,))
    assert [user.may_change(status(*each)) for each in [(0, 0o755), (0, 0o777), (NOBODY, 0o500)]] == [False, True, True]
    assert user.may_change(status(0, 0o775, 100))
    assert not user.may_change(status(0, 0o775, 101))
    assert not user.may_replace(status(0, 0o1777), status(0, 0o755))
    assert user.may_replace(status(0, 0o1777), status(NOBODY, 0o755))
    assert not FileRights().may_change(status(0, 0o777))


@as_root
def test_the_way_ends_at_what_the_user_may_replace_also_behind_an_operators_link(
    job: FileRights, open_path: Path
) -> None:
    theirs = owned(open_path / "theirs")
    (theirs / "a").mkdir()
    (open_path / "link").symlink_to("theirs")
    assert anchor(str(open_path / "link" / "a" / "b"), job) == (str(theirs), ["a", "b"])
    assert anchor(str(open_path / "x" / ".." / "y"), job) == (str(open_path), ["x", "..", "y"])
    (open_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        anchor(str(open_path / "loop"), job)


@as_root
def test_an_agent_does_not_keep_its_state_where_its_stages_could_put_another(open_path: Path) -> None:
    whose = RunAs("nobody", NOBODY, NOBODY)
    state = owned(open_path / "theirs") / "state"
    state.mkdir()
    with pytest.raises(ValueError, match="who may rename or remove what is in"):
        whose.check(state)
    whose.check(open_path)


# -- what root reads


@pytest.mark.parametrize("path", ["", ".", "..", "a/../b", "/etc", "a//b", "a\0b"])
def test_a_path_that_leaves_its_folder_is_none(tmp_path: Path, path: str) -> None:
    with Folder(str(tmp_path)) as folder, pytest.raises(OSError, match="does not stay"):
        folder.open(path)


def test_neither_a_link_nor_a_pipe_nor_a_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder-link").symlink_to("folder")
    with Folder(str(tmp_path)) as folder:
        assert [path for path, _ in folder.walk()] == ["file"]
        for name in ("link", "pipe", "folder", "folder-link/x"):
            with pytest.raises(OSError, match=r"regular file|symbolic links|Not a directory"):
                folder.open(name)
    assert content(str(tmp_path / "link")) is None
    assert content(str(tmp_path / "pipe")) in (None, b"")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        Folder(str(tmp_path / "folder-link"))


def test_a_small_file_without_end_is_none(tmp_path: Path) -> None:
    endless = tmp_path / "exit.json"
    endless.touch()
    os.truncate(endless, 1 << 40)
    assert content(str(endless)) is None


def test_a_pipe_in_the_place_of_a_log_costs_the_log_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.out")
    (tmp_path / "0.err").symlink_to(tmp_path / "elsewhere")
    for name in ("0.out", "0.err"):
        reader, writer = os.pipe()
        stream = OutputStream(reader, str(tmp_path / name), 1 << 20)
        os.write(writer, b"text")
        os.close(writer)
        stream.drain()
        assert (stream.kept, stream.dropped) == (0, 4)
    assert not (tmp_path / "elsewhere").exists()


def test_more_folders_in_each_other_than_anybody_needs_are_refused_when_it_matters(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * 70)).mkdir(parents=True)
    with Folder(str(tmp_path)) as folder:
        with pytest.raises(OSError, match="more than 64 folders"):
            list(folder.walk())
        assert list(folder.walk(careful=False)) == []


@pytest.fixture
def staging(tmp_path: Path, job: FileRights) -> Staging:
    """As much of a node's supply as harvests, as root, what nobody left."""
    made = Staging.__new__(Staging)
    made.store = ContentStore(tmp_path / "stock", 1 << 20)
    made.fetcher = Fetcher(Server("http://127.0.0.1:1"), made.store, [], job)
    made.changed = lambda: None  # type: ignore[method-assign]
    return made


def harvest(staging: Staging, run: Path, output_dir: Path, name: str, is_shared: bool = False) -> list[str]:
    run.mkdir(exist_ok=True)
    told = {"roots": [], "outputs": [name], "output_dir": str(output_dir), "is_shared": is_shared}
    write_whole(str(run / NOTE), told)
    return [left.digest for left in staging.keep_outputs(str(run))]


@as_root
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_folder_swapped_for_a_link_hands_nothing_of_root_to_anybody(
    staging: Staging, open_path: Path, is_shared: bool
) -> None:
    state = secret(open_path / "state" / "node.json").parent
    left = owned(open_path / "outputs")
    (left / "conf").symlink_to(state)
    os.link(state / "node.json", left / "linked")  # where the kernel does not protect hard links, a job can do that
    (left / "linked").chmod(0o600)
    for name in ("conf/node.json", "conf", "linked"):
        with pytest.raises(UnfitFile, match=f'output "{name}" could not be'):
            harvest(staging, open_path / "run", left, name, is_shared)
    assert staging.store.roots() == []
    assert [path.name for path in staging.store._files()] == []


@as_root
@pytest.mark.parametrize("once_it_was", ["entries", "status"])
@pytest.mark.parametrize("swapped", ["result", "result/inner"])
def test_a_folder_that_turns_into_a_link_in_the_middle_of_a_harvest_hands_out_nothing(
    staging: Staging, open_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, once_it_was: str
) -> None:
    """It is swapped between two looks, which a stage that tries long enough succeeds in."""
    state = open_path / "state"
    secret(state / "x")
    secret(state / "inner" / "x")
    left = owned(open_path / "outputs")
    inner = owned(left / "result" / "inner")
    (inner / "x").write_text("honest")
    real = getattr(Folder, once_it_was)

    def look(self: Folder, path: str = "", *more: object) -> object:
        found = real(self, path, *more)
        if path == "result" and not (left / swapped).is_symlink():
            (left / swapped).rename(left / "aside")
            (left / swapped).symlink_to(state)
        return found

    assert harvest(staging, open_path / "run", left, "result")
    for path in staging.store._files():
        path.unlink()
    monkeypatch.setattr(Folder, once_it_was, look)
    with contextlib.suppress(UnfitFile):
        harvest(staging, open_path / "run", left, "result")
    assert (left / swapped).is_symlink()
    assert not [path for path in staging.store._files() if b"yard_secret" in path.read_bytes()]


@as_root
def test_an_output_without_end_is_refused_before_it_is_read(staging: Staging, tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "huge").touch()
    os.truncate(tmp_path / "outputs" / "huge", 1 << 42)
    staging.fetcher.rights = beneath.OWN
    with pytest.raises(UnfitFile, match="this node keeps 1048576 at most"):
        harvest(staging, tmp_path / "run", tmp_path / "outputs", "huge")


@as_root
def test_an_input_from_an_operators_folder_is_read_as_the_stages_user(staging: Staging, open_path: Path) -> None:
    hidden = secret(open_path / "data" / "hidden")
    (open_path / "data" / "open").write_text("all may")
    with Folder(str(hidden.parent), staging.fetcher.rights) as folder:
        assert manifest.of(folder, "open").size == 7
        with pytest.raises(PermissionError):
            manifest.of(folder, "hidden")


@as_root
def test_no_checkpoint_is_found_confirmed_or_cleared_away_behind_a_link(
    job: FileRights, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that belongs to the stages' user: the way to a folder of checkpoints can be any stage's link."""
    private = open_path / "private"
    for step in (1, 2, 3):
        (private / "checkpoints" / "train" / f"checkpoint-{step}").mkdir(parents=True)
        (private / "checkpoints" / "train" / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    (private / "checkpoints" / "train" / "latest").write_text("a word that only root may read")
    private.chmod(0o700)
    storage = owned(open_path / "shared")
    (storage / "7").symlink_to(private)
    folder = str(storage / "7" / "checkpoints" / "train")
    assert checkpoints.discover(folder, job) == []
    assert checkpoints.resume_path(folder, f"{private}/checkpoints/train/latest", 9, job) == ""
    assert signature(folder, job) == (0, 0, 0)
    assert not checkpoints.remove(folder, "checkpoint-1", job)
    run = open_path / "run"
    run.mkdir()
    spec = PartSpec(7, "toy", "train", "train", "lab", 1, ["true"], checkpoint_dir=folder, keep_checkpoints=1)
    checkpoint_watch.begin(str(run), spec, "", job)
    seen = checkpoint_watch.CheckpointWatch(str(run), job)
    assert not seen.look()
    assert seen.checkpoints == []
    assert len(list((private / "checkpoints" / "train").glob("checkpoint-*"))) == 3


# -- what root removes and gives away


def removed(folder: Path, name: str) -> bool:
    top = os.open(folder, beneath.FOLDER)
    try:
        return beneath.remove(top, name)
    finally:
        os.close(top)


def test_a_tree_with_links_goes_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "x").write_text("x")
    run = tmp_path / "run"
    (run / "a" / "b").mkdir(parents=True)
    (run / "a" / "link").symlink_to(kept)
    (run / "a" / "b" / "file").symlink_to(kept / "x")
    os.mkfifo(run / "a" / "pipe")
    for number in range(2500):
        (run / "a" / "b" / f"{number}").touch()
    assert removed(tmp_path, "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]
    assert (kept / "x").read_text() == "x"
    assert removed(tmp_path, "run"), "what is gone is gone"
    (tmp_path / "link").symlink_to(kept)
    assert removed(tmp_path, "link")
    assert (kept / "x").exists()


def test_folders_in_each_other_beyond_any_path_go(tmp_path: Path) -> None:
    script = "import os\nfor _ in range(4000):\n    os.mkdir('d'); open('f', 'w').close(); os.chdir('d')"
    (tmp_path / "run").mkdir()
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path / "run", check=True)
    try:
        assert removed(tmp_path, "run")
    finally:
        subprocess.run(["rm", "-rf", "run"], cwd=tmp_path, check=True)  # too deep for whoever clears up tests
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_rights_goes_too(tmp_path: Path) -> None:
    (tmp_path / "run" / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "run" / "a" / "b" / "c" / "file").touch()
    for folder in ("a/b/c", "a/b", "a"):
        (tmp_path / "run" / folder).chmod(0o555)
    assert removed(tmp_path, "run")


MOUNTED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from agents.isolation import beneath
os.chdir(sys.argv[2])
subprocess.run(["mount", "--bind", "kept", "run/a/b/m"], check=True)
subprocess.run(["mount", "--bind", "kept", "run/n"], check=True)
assert os.listdir("run/n") == ["x"]
top = os.open(".", beneath.FOLDER)
assert not beneath.remove(top, "run")
assert os.listdir("kept") == ["x"], "what was mounted is gone"
found = [(names, files) for _, names, files in os.walk("run")]
assert sum(files == ["x"] for _, files in found) == 2
assert not any("file" in files for _, files in found)
"""


def test_what_is_mounted_in_a_tree_stays(tmp_path: Path) -> None:
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").touch()
    (tmp_path / "run" / "a" / "b" / "m").mkdir(parents=True)
    (tmp_path / "run" / "n").mkdir()
    (tmp_path / "run" / "a" / "b" / "file").touch()
    subprocess.run([*apart, sys.executable, "-I", "-S", "-c", MOUNTED, str(ROOT), str(tmp_path)], check=True)
    assert (tmp_path / "kept" / "x").exists()


@as_root
def test_what_is_removed_while_its_owner_moves_it_takes_nothing_else_along(job: FileRights, open_path: Path) -> None:
    kept = secret(open_path / "kept" / "x")
    for _ in range(30):
        run = owned(open_path / "run")
        for number in range(20):
            owned(run / f"d{number}" / "e")
            os.chown(run / f"d{number}", NOBODY, NOBODY)
        swap = f"""
for number in range(20):
    try:
        os.rename(f"d{{number}}", "aside"); os.symlink({str(kept.parent)!r}, f"d{{number}}")
    except OSError:
        pass
"""
        with tug(run, swap):
            removed(open_path, "run")
        assert removed(open_path, "run")
        assert kept.exists()


@as_root
def test_what_is_given_away_takes_nothing_that_lies_in_it_along(job: FileRights, tmp_path: Path) -> None:
    """Inputs are hard links to what the node keeps: given to a stage with its folder, they could be written to."""
    store = ContentStore(tmp_path / "stock", 1 << 20)
    digest = store.put_bytes(b"kept")
    scratch = tmp_path / "tmp"
    scratch.mkdir(mode=0o700)
    store.lay_out_file(digest, scratch / "input")
    beneath.give(str(scratch), 0o755, job)
    assert (scratch.stat().st_uid, store.path(digest).stat().st_uid) == (NOBODY, 0)
    (tmp_path / "link").symlink_to(tmp_path / "stock")
    with pytest.raises(OSError, match="symbolic links"):
        beneath.give(str(tmp_path / "link"), 0o755, job)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", ""])
def test_no_input_is_shown_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unfetched, match="does not stay in its folder"):
        _place(tmp_path, name)


def test_no_input_is_laid_out_through_the_link_of_another(tmp_path: Path) -> None:
    (tmp_path / "prep").symlink_to("/etc")
    with pytest.raises(Unfetched, match="would lie in another input"):
        _place(tmp_path, "prep/tokens")


def test_the_kernel_follows_no_link_up_down_or_by_magic(tmp_path: Path, way: str) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_text("inside")
    (tmp_path / "out").write_text("outside")
    (tmp_path / "in" / "up").symlink_to("../out")
    (tmp_path / "in" / "round").symlink_to("deep")
    (tmp_path / "in" / "magic").symlink_to(f"/proc/{os.getpid()}/cwd")
    with Folder(str(tmp_path / "in")) as folder:
        with open(folder.open("deep/file"), "rb") as file:
            assert file.read() == b"inside"
        assert folder.status("deep/file").st_size == 6
        for path in ("up", "round/file", "magic/x", "../out", "deep/../deep/file", "/etc/passwd", "deep//file"):
            with pytest.raises(OSError, match=r"\w"):
                os.close(folder.open(path))
        with pytest.raises(FileNotFoundError):
            folder.open("deep/none")
        with pytest.raises(FileNotFoundError):
            folder.status("none/file")
    assert beneath._lacks_openat2 is (way == "step by step")


def test_a_handle_that_the_kernel_opened_is_not_handed_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with Folder(str(tmp_path)) as folder:
        descriptor = folder.open("file")
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_a_path_longer_than_the_kernel_takes_is_gone_step_by_step(tmp_path: Path) -> None:
    names = ["d" * 200] * 30
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        os.mkdir(name, dir_fd=handle)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)
    with Folder(str(tmp_path)) as folder:
        os.close(folder.open("/".join([*names, "file"])))
