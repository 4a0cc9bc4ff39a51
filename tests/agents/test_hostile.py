"""What a stage of a stranger tries on a host where the agent is root and stages are nobody, and what it gets of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agents.devices.readers.library import VendorProcess
from agents.isolation.run_as import RunAs
from agents.link.server import Server
from agents.protocol import Phase
from agents.runtimes import Unlaunchable
from agents.runtimes.container import ContainerExecutor
from agents.runtimes.process import Ground
from agents.storage.bundle import BundleCache
from agents.supervisor.fork_client import ForkClient
from agents.tasks.environment import PartPaths
from tests.agents.conftest import ROOT, Hands
from tests.agents.test_process import output, ran
from tests.agents.yard import order, stop

Names = Callable[[], str]
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root (run the tests as root)")


def folders(storage: Path, stage: str) -> dict[str, object]:
    """The folders of a stage of job 7 on a storage that nodes share, as the control plane names them."""
    job = storage / "7"
    return {
        "stage": stage,
        "checkpoint_dir": str(job / "checkpoints" / stage),
        "output_dir": str(job / "outputs" / stage),
        "input_dir": str(job / "outputs"),
    }


@as_root
@pytest.mark.parametrize("of_nobody", [True, False])
@pytest.mark.parametrize("swapped", ["7", "7/checkpoints"])
def test_a_link_in_the_place_of_a_jobs_folder_makes_nothing_anywhere_else(
    root_agent: Hands, part: Names, open_path: Path, of_nobody: bool, swapped: str
) -> None:
    """The later stage is called "yaml": a folder of that name among root's code would be a package to import."""
    checkout, storage = open_path / "checkout", open_path / "shared"
    checkout.mkdir()
    storage.mkdir()
    if of_nobody:
        os.chown(storage, NOBODY, NOBODY)
    target = checkout if swapped != "7" else checkout.parent / "trap"
    if swapped == "7":
        target.mkdir()
        (target / "checkpoints").mkdir()
    first, second = part(), part()
    script = f"""
cd {storage} && mv {swapped} {swapped}-aside; mkdir -p $(dirname {swapped}) && ln -s {target} {swapped} && echo swapped
"""
    ran(root_agent, first, "sh", "-c", script, **folders(storage, "train"))
    assert (output(root_agent, first) == "swapped\n") is of_nobody
    end = ran(root_agent, second, "sh", "-c", 'touch "$YARD_CHECKPOINT_DIR/made"', **folders(storage, "yaml"))
    assert list(checkout.iterdir()) == []
    assert sorted(path.name for path in open_path.rglob("yaml")) == ([] if of_nobody else ["yaml", "yaml"])
    if of_nobody:
        assert end.cause == "LAUNCH_FAILED"
        assert "could not be made: Permission denied" in end.detail
    else:
        assert end.code == 0, end
        assert (storage / "7" / "checkpoints").stat().st_uid == 0
        assert (storage / "7" / "checkpoints" / "yaml" / "made").stat().st_uid == NOBODY


@as_root
def test_an_output_that_leads_to_the_nodes_credential_is_not_kept(root_agent: Hands, part: Names) -> None:
    name = part()
    script = f'ln -s {root_agent.state} "$YARD_OUTPUT_DIR/conf"'
    root_agent.yard.want(root_agent.name, order(name, "sh", "-c", script, outputs=["conf/node.json"]))
    here = root_agent.yard.ended(root_agent.name, name)
    digest = hashlib.sha256((root_agent.state / "node.json").read_bytes()).hexdigest()
    assert not (root_agent.state / "stock" / "files" / digest[:2] / digest).exists()
    assert here.outputs == []
    assert here.exit is not None
    assert 'output "conf/node.json" could not be' in here.exit.detail


@as_root
def test_what_a_root_agent_puts_into_a_stages_folders_is_not_the_stages_to_replace(
    root_agent: Hands, part: Names
) -> None:
    name = part()
    run = root_agent.state / "parts" / name
    script = f"""
for each in exit.json order.json taken 0.out report.jsonl; do
    rm -f {run}/$each 2>/dev/null; ln -s /etc/passwd {run}/$each 2>/dev/null && echo replaced $each
done
mv {run}/tmp {run}/aside 2>/dev/null && echo moved
echo line >> "$YARD_REPORT_FILE" && touch "$TMPDIR/mine" mine && echo mine
"""
    ran(root_agent, name, "sh", "-c", script)
    assert output(root_agent, name) == "mine\n"


@as_root
def test_a_run_folder_goes_with_whatever_its_job_made_of_it(root_agent: Hands, part: Names) -> None:
    name = part()
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    script = f'ln -s {root_agent.state} link; mkfifo pipe; "$0" -I -S -c "{deep}"; chmod 0 "$TMPDIR"; echo done'
    interpreter = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    ran(root_agent, name, "sh", "-c", script, interpreter)
    assert output(root_agent, name) == "done\n"
    run = root_agent.state / "parts" / name
    try:
        root_agent.yard.wait(lambda: not run.exists())
    finally:
        subprocess.run(["rm", "-rf", run], check=True)  # what is left would be too deep for whoever clears up tests
    assert (root_agent.state / "node.json").exists()


def test_a_pipe_in_the_place_of_a_report_file_does_not_hold_up_its_supervisor(shared: Hands, part: Names) -> None:
    """An agent that is no other user than its stages: what a stage does to its run folder it does to itself alone."""
    name = part()
    script = """
rm "$YARD_REPORT_FILE"; mkfifo "$YARD_REPORT_FILE"
trap "" TERM; echo ready; while :; do sleep 0.02; done
"""
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 0.3))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert end.stopped


def test_a_pipe_in_the_place_of_an_exit_file_holds_up_no_other_part(shared: Hands, part: Names) -> None:
    name = part()
    shared.yard.want(shared.name, order(name, "sh", "-c", "mkfifo ../exit.json; echo ready; sleep 300"))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    assert ran(shared, part(), "true").code == 0
    shared.yard.want(shared.name, stop(name, 0.0))
    assert shared.yard.ended(shared.name, name).phase == Phase.ENDED


# -- what a container is shown


def containers(tmp_path: Path) -> ContainerExecutor:
    """What starts containers for a root agent whose stages are nobody; nothing is started here."""
    bundles = BundleCache(tmp_path / "bundles", Server("http://127.0.0.1:1"))
    parent = ForkClient(tmp_path / "log")
    nobody = RunAs("nobody", NOBODY, NOBODY)
    return ContainerExecutor(Ground("boot", tmp_path / "bell", tmp_path / "lease", parent, bundles, nobody))


@pytest.fixture
def _groups() -> Iterator[None]:
    before = os.getgroups()
    os.setgroups([])
    yield
    os.setgroups(before)


@as_root
@pytest.mark.usefixtures("_groups")
def test_a_checkpoint_that_a_stage_named_shows_a_container_no_other_place_of_the_host(open_path: Path) -> None:
    storage = open_path / "shared"
    of_another = storage / "3" / "checkpoints" / "train" / "step-5"
    of_another.mkdir(parents=True)
    own = str(storage / "7" / "checkpoints" / "train")
    executor, places = containers(open_path), PartPaths(open_path / "run")
    spec = order("p", "true", image="registry.local/a:1", checkpoint_dir=own).spec
    assert spec is not None
    without = executor._box(spec, "p", places, executor.ground.run_as)
    for told in ("/etc", "/proc", "/", str(open_path), str(storage), str(of_another), f"{own}/../../../3"):
        named = executor._box(msgspec.structs.replace(spec, resume_from=told), "p", places, executor.ground.run_as)
        assert (named.readable, named.writable) == (without.readable, without.writable), told


@as_root
@pytest.mark.usefixtures("_groups")
def test_no_container_is_shown_a_folder_that_a_stage_could_have_put_in_anothers_place(tmp_path: Path) -> None:
    storage = tmp_path / "shared"
    leaf = storage / "7" / "checkpoints" / "train"
    leaf.mkdir(parents=True)
    os.chown(leaf, NOBODY, NOBODY)
    executor = containers(tmp_path)
    executor._check_shown(str(leaf), executor.ground.run_as)
    os.chown(storage, NOBODY, NOBODY)
    with pytest.raises(Unlaunchable, match="nobody could put another folder in its place"):
        executor._check_shown(str(leaf), executor.ground.run_as)


# -- what our own programs import


def planted(folder: Path, *names: str) -> Path:
    """A working folder with modules that tell that they were imported."""
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\nraise SystemExit(3)\n")
    return folder


def test_the_reader_of_a_vendors_library_imports_nothing_from_where_the_agent_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted(tmp_path, "json", "pynvml", "ctypes"))
    reader = VendorProcess("tests.agents.answering", "a library")
    try:
        assert reader.ask("where", 30.0) == {"cwd": "/"}
    finally:
        reader.close()
    assert not (tmp_path / "imported").exists()


def test_an_agent_imports_nothing_from_the_folder_it_is_started_in(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agents", "--help"],
        cwd=planted(tmp_path, "msgspec", "psutil", "yaml", "asyncio"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, (tmp_path / "imported").exists()) == (0, False), done.stderr
    assert "--run-as" in done.stdout
