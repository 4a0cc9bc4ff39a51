"""What of an order must not lie on a disk lies in memory, is taken once, and nobody else gets at it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.supervisor import secret_file
from tests.agents.conftest import Hands
from tests.agents.test_process import ran

Names = Callable[[], str]


def test_what_is_left_is_taken_once_and_nothing_stays(tmp_path: Path) -> None:
    path = secret_file.leave(str(tmp_path), "part.json", {"env": {"A": "b"}})
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    assert secret_file.take(path) == {"env": {"A": "b"}}
    assert secret_file.take(path) is None
    assert not os.path.exists(os.path.dirname(path))


def test_it_lies_in_memory_where_the_host_has_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/sdb /run/disk ext4 rw 0 0\n")
    found = {path: secret_file.is_in_memory(path, str(mounts)) for path in ("/", "/run", "/run/disk/x", "/runner")}
    assert found == {"/": False, "/run": True, "/run/disk/x": False, "/runner": False}
    assert not secret_file.is_in_memory("/", str(tmp_path / "nothing"))
    monkeypatch.setattr(secret_file, "base", lambda: "")
    assert os.path.dirname(secret_file.folder(str(tmp_path))) == str(tmp_path)


def test_a_name_that_another_user_took_is_left_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, state = tmp_path / "memory", tmp_path / "state"
    top.mkdir()
    state.mkdir()
    monkeypatch.setattr(secret_file, "base", lambda: str(top))
    first = secret_file.folder(str(state))
    os.rmdir(first)
    os.symlink(state, first)
    second = secret_file.folder(str(state))
    assert second == f"{first}-1"
    for number in range(2, 8):
        (top / f"{os.path.basename(first)}-{number}").write_text("")
    os.rmdir(second)
    (top / os.path.basename(second)).write_text("")
    with pytest.raises(OSError, match="every name"):
        secret_file.folder(str(state))


def test_a_part_that_is_refused_ends_with_the_servers_sentence(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), refused=("SecretMissing", {"name": "HF_TOKEN", "project": "vision"}))
    assert (end.cause, end.detail) == ("LAUNCH_FAILED", "project vision has no secret HF_TOKEN any more")
    end = ran(shared, part(), refused=("OfALaterRelease", {"x": 1}))
    assert (end.cause, end.detail) == ("LAUNCH_FAILED", "this node could not start it (OfALaterRelease)")


def test_a_name_of_a_file_that_leads_elsewhere_is_refused(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), "true", secret_files={"../KEY": "x"})
    assert end.cause == "LAUNCH_FAILED"
