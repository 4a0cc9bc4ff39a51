"""Tasks of two projects are two users: what one of them can do to the other, to the agent and to the node is tried."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.ends import Unlaunchable
from agents.isolation.run_as import RunAs, parse
from agents.isolation.users import HIGHEST, LOWEST, USUAL, Users, chosen
from agents.protocol import Phase
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order, stop

Names = Callable[[], str]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")


@given(st.integers(-5, 100_000), st.integers(-5, 100_000))
def test_two_projects_are_never_one_user(one: int, other: int) -> None:
    users = Users(RunAs("nobody", 65534, 65534), uids=USUAL)

    def uid(number: int) -> int | None:
        try:
            return users.of("p", number).uid
        except Unlaunchable:
            return None

    found = uid(one), uid(other)
    if None not in found and one != other and 0 not in (one, other):
        assert found[0] != found[1]
    for each in found:
        assert each is None or each == 65534 or (each in USUAL and each not in (0, 65534) and LOWEST <= each <= HIGHEST)


@as_root
@pytest.mark.parametrize(
    "text", ["", "0-10", "5-2000", "2000-1000", "1000-4294967295", "60000-70000", "a-b", "1000", "1000-2000-3000"]
)
def test_a_range_that_cannot_be_is_refused_with_one_that_can(text: str) -> None:
    if text:
        with pytest.raises(ValueError, match="for example"):
            chosen(None, text, [])


@as_root
def test_accounts_are_of_people_and_never_of_the_system() -> None:
    for text in ("vision=root", "vision=daemon", "vision", "=ada", "vision="):
        with pytest.raises(ValueError, match="--account"):
            chosen(None, None, [text])
    with pytest.raises(ValueError, match="not both"):
        chosen("nobody", "100000-200000", [])
    users = chosen(None, "100000-200000", ["vision=4711"])
    assert users.of("vision", 3).uid == 4711
    assert users.of("speech", 3).uid == 100_003
    assert chosen("nobody", None, []).of("vision", 3) == parse("nobody")


@pytest.fixture
def apart(model: Yard, open_path: Path) -> Iterator[Hands]:
    """A root agent that gives each project a user."""
    made = Hands(model, open_path, f"apart-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.start("--uid-range", f"{USUAL[0]}-{USUAL[-1]}")
    yield made
    made.clear()


@as_root
def test_no_project_reaches_what_is_anothers(apart: Hands, part: Names) -> None:
    """One job tries what a hostile one would; its neighbour runs on, and the node's own files stay closed."""
    victim, attacker = part(), part()
    apart.yard.want(
        apart.name,
        order(victim, "sh", "-c", "echo $$; echo secret > work-of-mine; exec sleep 300", project="a", project_number=1,
              env={"PASS_PHRASE": "of-the-victim"}),
    )  # fmt: skip
    here = apart.yard.phase(apart.name, victim, Phase.RUNNING)
    folder = f"{apart.state}/parts/{victim}"
    shim = apart.shim_of(victim)["pid"]
    script = f"""
    id -u
    [ "$(id -u)" = {USUAL[2]} ] || exit 3
    for place in {folder} {folder}/work {folder}/work/work-of-mine {folder}/tmp {folder}/0.out {folder}/report.jsonl \
                 {folder}/taken {apart.state}/node.json {apart.state}/journal.jsonl {apart.state}/parts \
                 {apart.state}/local {apart.state}/local/7/checkpoints/train {apart.state}/local/7/outputs/train \
                 /proc/{here.pid}/environ /proc/{here.pid}/cwd/ /proc/{here.pid}/mem \
                 /proc/{shim}/environ /proc/{shim}/fd/; do
        if ls $place/ >/dev/null 2>&1 || head -c 1 $place 2>/dev/null | grep -q .; then echo reads $place; fi
        if (: >> $place) 2>/dev/null; then echo writes $place; fi
    done
    mv {folder} {folder}-mine 2>/dev/null && echo moved
    kill -9 {here.pid} {shim} 2>/dev/null && echo killed
    kill -9 -1 2>/dev/null
    echo done
    """
    apart.yard.want(apart.name, order(attacker, "bash", "-c", script, project="b", project_number=2))
    apart.yard.ended(apart.name, attacker)
    apart.yard.wait(lambda: b"done" in apart.yard.logs[(attacker, 0, "out")])
    said = bytes(apart.yard.logs[(attacker, 0, "out")]).decode().split("\n")
    assert said[0] == str(USUAL[2])
    assert [line for line in said[1:] if line and line != "done"] == []
    assert os.stat(f"/proc/{here.pid}").st_uid == USUAL[1]
    assert apart.yard.side(apart.name).here[victim].phase == Phase.RUNNING
    assert apart.process is not None
    assert apart.process.poll() is None


@as_root
def test_what_a_part_leaves_is_taken_as_its_own_user(apart: Hands, part: Names) -> None:
    name = part()
    script = 'test "$USER" = "$(id -u)" && cd "$HOME" && echo weights > "$YARD_OUTPUT_DIR/model"'
    apart.yard.want(apart.name, order(name, "sh", "-c", script, project_number=7, outputs=["model"], job=91))
    here = apart.yard.ended(apart.name, name)
    assert here.exit is not None
    assert here.exit.code == 0, here.exit
    assert [each.name for each in here.outputs] == ["model"]
    assert os.stat(Path(apart.state) / "local" / "91" / "outputs" / "train").st_uid == USUAL[7]


@as_root
def test_a_project_without_a_user_here_is_refused_by_its_number(apart: Hands, part: Names) -> None:
    name = part()
    apart.yard.want(apart.name, order(name, "true", project="far", project_number=len(USUAL)))
    end = apart.yard.ended(apart.name, name).exit
    assert end is not None
    assert end.cause == "LAUNCH_FAILED"
    assert f"project far has number {len(USUAL)}" in end.detail


@as_root
def test_a_job_that_forks_without_end_stalls_itself_alone(model: Yard, open_path: Path, part: Names) -> None:
    made = Hands(model, open_path, f"forks-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.environment["YARD_AGENT_PROCESSES"] = "60"
    made.start("--uid-range", f"{USUAL[0]}-{USUAL[-1]}")
    try:
        bomb, other = part(), part()
        script = "import os, time\nfor n in range(10**6):\n    try:\n        if os.fork() == 0: time.sleep(300)\n"
        script += "    except OSError:\n        print('no more after', n, flush=True); time.sleep(300)\n"
        made.yard.want(made.name, order(bomb, "python3", "-c", script, project="a", project_number=1))
        said = made.yard.wait(lambda: bytes(made.yard.logs[(bomb, 0, "out")]))
        assert 20 < int(said.split()[-1]) < 60
        made.yard.want(made.name, order(other, "sh", "-c", "(true) && echo fine", project="b", project_number=2))
        end = made.yard.ended(made.name, other).exit
        assert end is not None
        assert end.code == 0, "others start and run"
        made.yard.want(made.name, stop(bomb, 0.0))
        made.yard.ended(made.name, bomb)
        assert not procfs.marked(bomb)
    finally:
        made.clear()


@as_root
def test_a_folder_of_before_there_were_users_is_handed_on(apart: Hands, part: Names) -> None:
    name = part()
    folder = Path(apart.state) / "local" / "7" / "checkpoints" / "train"
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)
    apart.yard.want(apart.name, order(name, "sh", "-c", 'echo x > "$YARD_CHECKPOINT_DIR/step-1"', project_number=3))
    end = apart.yard.ended(apart.name, name).exit
    assert end is not None
    assert end.code == 0, end
    assert folder.stat().st_uid == USUAL[3]
    assert folder.stat().st_mode & 0o777 == 0o700
