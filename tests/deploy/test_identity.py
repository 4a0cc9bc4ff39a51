"""As whom the parts and the stages of a local stack run, and that root is never that unasked."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agents.isolation.users import USUAL
from deploy.local import identity, parts
from deploy.local.home import Home
from deploy.local.identity import ACCOUNTS, Exposed, People
from deploy.local.leash import NOBODY
from deploy.local.service import ROOT

as_root = pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")


@pytest.fixture
def closed(tmp_path: Path) -> Home:
    """A state folder that no other user can come to."""
    tmp_path.chmod(0o700)
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    return home


@as_root
def test_stages_are_not_root_unless_somebody_says_so(closed: Home) -> None:
    with pytest.raises(Exposed) as refused:
        identity.choose(closed, stages_as_root=False)
    said = str(refused.value)
    for cure in ("as an ordinary user", "where every user may enter", str(closed.path), "--stages-as-root"):
        assert cure in said
    assert stat.S_IMODE(closed.path.stat().st_mode) == 0o700, "nothing is opened for a start that is refused"
    people = identity.choose(closed, stages_as_root=True)
    assert (people.parts, people.stages) == (None, "root")
    assert people.note.startswith("STAGES RUN AS ROOT")


def test_two_stacks_of_one_machine_are_not_the_same_users(tmp_path: Path) -> None:
    ranges = [identity.uids(Home(tmp_path / name)) for name in ("a", "b", "a")]
    assert ranges[0] == ranges[2]
    assert not set(ranges[0]) & set(ranges[1])
    for uids in ranges:
        assert len(uids) == identity.PROJECTS
        assert USUAL[-1] < uids[0] < uids[-1] < 2**31


@as_root
def test_each_project_is_a_user_where_this_machine_has_them(closed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_hindrance", lambda *_: "")
    assert identity.choose(closed, stages_as_root=False).stages == "projects"
    closed.agents.mkdir()
    command = parts.agent(closed, "http://127.0.0.1:1", "here", "t", "projects", {}).command
    assert f"{identity.uids(closed)[0]}-{identity.uids(closed)[-1]}" in command
    monkeypatch.setattr(identity, "are_mapped", lambda _: False)
    assert identity.choose(closed, stages_as_root=False).stages == "nobody"


@as_root
def test_up_and_demo_refuse_with_both_cures(closed: Home) -> None:
    for verb in ("up", "demo"):
        tried = subprocess.run(
            [sys.executable, "-P", "-m", "deploy.local", verb, "--port", "18799"],
            env={**os.environ, "YARD_HOME": str(closed.path), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert tried.returncode == 1
        assert "--stages-as-root" in tried.stderr
        assert "ordinary user" in tried.stderr
        assert "Ready" not in tried.stdout


def test_parts_are_neither_roots_nor_the_stages(tmp_path: Path) -> None:
    found = identity.account()
    assert found is None or found[0] not in (0, NOBODY)
    assert found is None or pwd.getpwuid(found[0]).pw_name in ACCOUNTS
    if os.getuid() != 0:
        assert identity.choose(Home(tmp_path), stages_as_root=False) == People()
