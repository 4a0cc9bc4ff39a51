"""Copying out of a job and into it: whatever a job sends, nothing is written outside the place that was asked for."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.tarstream import Copied, CopyRefused, give, stays_inside, take
from tests.examples_count import examples

MOST = 1 << 20


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def stream(*members: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> io.BytesIO:
    """A tar stream; every regular file holds its own name."""
    held = io.BytesIO()
    with tarfile.open(mode="w", fileobj=held, format=form) as made:
        for each in members:
            content = each.name.encode("utf-8", "surrogateescape") if each.isreg() else b""
            each.size = len(content)
            made.addfile(each, io.BytesIO(content))
    held.seek(0)
    return held


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with something beside it that nobody may touch."""
    folder = tmp_path / "space" / "folder"
    folder.mkdir(parents=True)
    (folder.parent / "beside").write_text("mine")
    return folder


def copy(here: Path, *members: tarfile.TarInfo, most: int = MOST, **more: Any) -> Copied:
    return take(stream(*members, **more).read, "out", here / "got", most_bytes=most)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_folder_arrives_as_it_is(here, form):
    long = "out/" + "x" * 120 + "/" + "y" * 150
    copied = copy(
        here, member("out", tarfile.DIRTYPE, mode=0o550), member("out/run.sh", mode=0o4755), member(long),
        member("out/a", tarfile.DIRTYPE), member("out/a/link", tarfile.SYMTYPE, "../run.sh"),
        member("out/twice", tarfile.LNKTYPE, "out/run.sh"), form=form,
    )  # fmt: skip
    assert (here / "got" / long.removeprefix("out/")).read_text() == long
    assert stat.S_IMODE((here / "got").stat().st_mode) == 0o550
    assert stat.S_IMODE((here / "got/run.sh").stat().st_mode) == 0o755
    assert (here / "got/a/link").read_text() == "out/run.sh"
    assert (here / "got/twice").samefile(here / "got/run.sh")
    assert (copied.files, copied.left_out) == (2, 0)
    assert not [name for name in everything(here) if name.endswith(".yard")]


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../beside",
        "out/../../beside",
        "other",
        ".bashrc",
        "outer/x",
        "out/" + "x" * 120 + "\0y",
        "",
        ".",
    ],
)
def test_another_name_than_what_was_asked_for_is_refused(here, name):
    with pytest.raises(CopyRefused):
        copy(here, member(name), form=tarfile.PAX_FORMAT)
    assert everything(here.parent) == {"beside", "folder"}


@pytest.mark.parametrize("target", ["/etc", "..", "../beside", "a/../../../beside", "../folder/../../beside"])
def test_a_link_out_is_left_out_and_told(here, target):
    copied = copy(here, member("out", tarfile.DIRTYPE), member("out/link", tarfile.SYMTYPE, target))
    assert (copied.left_out, "link out" in copied.told[0]) == (1, True)
    assert everything(here) == {"got"}


def test_nothing_is_written_through_a_link(here):
    (here / "got").mkdir()
    (here / "got/theirs").symlink_to(here.parent)
    for name in ("out/theirs/beside", "out/theirs/new"):
        with pytest.raises(CopyRefused, match="no folder here"):
            copy(here, member(name))
    (here / "got/file").symlink_to(here.parent / "beside")
    copy(here, member("out/file"))
    assert (here / "got/file").read_text() == "out/file"
    assert not (here / "got/file").is_symlink()
    assert (here.parent / "beside").read_text() == "mine"


def test_a_second_name_of_a_file_outside_is_refused(here):
    for link in ("../beside", "/etc/passwd", "out/missing", "beside"):
        with pytest.raises(CopyRefused):
            copy(here, member("out", tarfile.DIRTYPE), member("out/x", tarfile.LNKTYPE, link))
    assert everything(here) == {"got"}


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(here, kind):
    copied = copy(here, member("out", tarfile.DIRTYPE), member("out/x", kind), member("out/y"))
    assert (copied.left_out, copied.files) == (1, 1)
    assert everything(here) == {"got", "got/y"}


def test_more_than_was_allowed_is_refused_before_it_is_written(here):
    with pytest.raises(CopyRefused, match="--most"):
        copy(here, member("out/a"), member("out/b"), most=8)
    assert everything(here) == {"got", "got/a"}


def test_a_head_without_end_is_not_read_into_memory(here):
    head = member("out/x", tarfile.XHDTYPE)
    head.size = 1 << 40
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return head.tobuf(tarfile.GNU_FORMAT) if len(asked) == 1 else b"0" * size

    with pytest.raises(CopyRefused, match="too large"):
        take(read, "out", here / "got", most_bytes=MOST)
    assert sum(asked) < MOST


@settings(max_examples=examples(60))
@given(st.binary(max_size=3000), st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), max_size=6))
def test_no_bytes_do_more_than_be_refused(tmp_path_factory, tail, changes):
    """Noise, and true streams in which bytes are changed."""
    good = bytearray(stream(member("out/a"), member("out/b", tarfile.SYMTYPE, "a")).getvalue())
    for at, byte in changes:
        good[at] = byte
    for content in (bytes(good), tail, bytes(good[:1536]) + tail):
        folder = tmp_path_factory.mktemp("noise")
        (folder / "in").mkdir()
        try:
            take(io.BytesIO(content).read, "out", folder / "in" / "got", most_bytes=MOST)
        except CopyRefused:
            pass
        assert {path.name for path in folder.iterdir()} == {"in"}
        assert {path.name for path in (folder / "in").iterdir()} <= {"got"}


@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from(["..", "a", "b", ".", ""]), max_size=6), st.integers(0, 3))
def test_a_link_that_stays_inside_does_so_whatever_the_names_on_its_way_are(parts, depth):
    """``..`` is counted as one folder up wherever it stands; a name is at worst a link to the outermost folder."""
    if not stays_inside("/".join(parts), depth):
        return
    level = depth
    for part in parts:
        level = level - 1 if part == ".." else 0 if part in ("a", "b") else level
        assert level >= 0


def test_what_is_given_can_be_taken(here, tmp_path):
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a/run.sh").write_text("echo")
    (source / "a/run.sh").chmod(0o750)
    (source / "link").symlink_to("a/run.sh")
    os.mkfifo(source / "pipe")
    held = io.BytesIO()
    given = give(held.write, source, "out")
    held.seek(0)
    taken = take(held.read, "out", here / "got", most_bytes=MOST)
    assert everything(here) == {"got", "got/a", "got/a/run.sh", "got/link"}
    assert stat.S_IMODE((here / "got/a/run.sh").stat().st_mode) == 0o750
    assert (given.left_out, taken.size_bytes) == (1, 4)


def test_one_side_has_to_be_a_job(yard):
    for words in (["a", "b"], ["1:a", "2:b"]):
        code, _, err = yard("cp", *words)
        assert (code, "JOB:PATH" in err) == (2, True)
