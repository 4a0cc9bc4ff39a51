"""Unpacking without the standard library's filter, as on Python 3.11.0 to 3.11.3."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from agents.bundle import unpack_vetted


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    member.size = 4 if kind == tarfile.REGTYPE else 0
    return member


def unpack(folder: Path, *members: tarfile.TarInfo) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"code") if member.isreg() else None)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        unpack_vetted(archive, folder)


def test_files_folders_and_links_inside_arrive(tmp_path: Path) -> None:
    unpack(
        tmp_path,
        entry("pkg", tarfile.DIRTYPE, mode=0o777),
        entry("pkg/run.sh", mode=0o4777),
        entry("latest", tarfile.SYMTYPE, "pkg/run.sh"),
        entry("pkg/same.sh", tarfile.LNKTYPE, "pkg/run.sh", mode=0o6755),
    )
    assert (tmp_path / "latest").read_bytes() == b"code"
    assert (tmp_path / "pkg" / "same.sh").read_bytes() == b"code"
    assert (tmp_path / "pkg" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "pkg").stat().st_uid == os.getuid()


@pytest.mark.parametrize(
    "members",
    [
        [entry("../out")],
        [entry("a/../../out")],
        [entry("link", tarfile.SYMTYPE, "..")],
        [entry("link", tarfile.SYMTYPE, "/etc")],
        [entry("d", tarfile.DIRTYPE), entry("d/up", tarfile.SYMTYPE, "../..")],
        [entry("hard", tarfile.LNKTYPE, "../out")],
        [entry("pipe", tarfile.FIFOTYPE)],
        [entry("disk", tarfile.BLKTYPE)],
    ],
    ids=lambda members: members[-1].name + " " + members[-1].linkname,
)
def test_what_leads_out_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(inside, *members)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]


def test_an_absolute_name_lands_inside(tmp_path: Path) -> None:
    unpack(tmp_path, entry("/etc/passwd"))
    assert (tmp_path / "etc" / "passwd").read_bytes() == b"code"


def test_a_link_that_is_already_there_is_not_followed_out(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "door").symlink_to(tmp_path)
    with pytest.raises(tarfile.TarError):
        unpack(inside, entry("door/out"))
    assert not (tmp_path / "out").exists()
