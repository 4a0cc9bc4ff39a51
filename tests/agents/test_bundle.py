"""Bundles are archives of strangers: what they hold arrives inside their folder, with their user's rights, or not."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.isolation.run_as import NOBODY, RunAs
from agents.link.server import Server
from agents.storage import unpack as child
from agents.storage.bundle import BundleCache, BundleUnusable
from tests.agents.conftest import ROOT

Unpack = Callable[..., Path]
SELF = RunAs("self")


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    member.size = 4 if kind == tarfile.REGTYPE else 0
    return member


def packed(*members: tarfile.TarInfo, mode: str = "w") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:  # type: ignore[call-overload]
        for member in members:
            archive.addfile(member, io.BytesIO(b"code") if member.isreg() else None)
    return content.getvalue()


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    """Unpacks members, or the bytes of an archive, through the cache into a fresh folder, and returns that."""
    cache = BundleCache(tmp_path / "cache", Server("http://127.0.0.1:1"))

    def unpacked(*members: tarfile.TarInfo, content: bytes = b"", run_as: RunAs = SELF) -> Path:
        content = content or packed(*members)
        digest = hashlib.sha256(content).hexdigest()
        (cache.folder / digest).write_bytes(content)
        folder = tmp_path / "inside"
        folder.mkdir(mode=0o700)
        cache.unpack(digest, folder, run_as)
        return folder

    return unpacked


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_files_folders_and_links_inside_arrive(unpack: Unpack, mode: str) -> None:
    members = (
        entry("./", tarfile.DIRTYPE),
        entry("pkg/", tarfile.DIRTYPE, mode=0o777),
        entry("pkg/run.sh", mode=0o4777),
        entry("latest", tarfile.SYMTYPE, "pkg/run.sh"),
        entry("pkg/up", tarfile.SYMTYPE, "..//./latest"),
        entry("pkg/same.sh", tarfile.LNKTYPE, "pkg/run.sh", mode=0o6755),
        entry("deep/er/without/entries", mode=0),
    )
    folder = unpack(content=packed(*members, mode=mode))
    assert (folder / "latest").read_bytes() == b"code"
    assert (folder / "pkg" / "up").read_bytes() == b"code"
    assert os.readlink(folder / "pkg" / "up") == "../latest"
    assert (folder / "pkg" / "same.sh").read_bytes() == b"code"
    assert (folder / "pkg" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (folder / "pkg").stat().st_mode & 0o7777 == 0o755
    assert (folder / "deep/er/without/entries").stat().st_mode & 0o777 == 0o600
    assert {path.lstat().st_uid for path in folder.rglob("*")} == {os.getuid()}


def test_the_later_of_two_files_of_one_name_counts(unpack: Unpack) -> None:
    folder = unpack(entry("a"), entry("b", tarfile.LNKTYPE, "a"), entry("a", mode=0o755))
    assert (folder / "a").stat().st_mode & 0o777 == 0o755
    assert (folder / "b").stat().st_mode & 0o777 == 0o644


HOSTILE = [
    [entry("../out")],
    [entry("a/../../out")],
    [entry("link", tarfile.SYMTYPE, "..")],
    [entry("link", tarfile.SYMTYPE, "/etc")],
    [entry("link", tarfile.SYMTYPE, "")],
    [entry("d", tarfile.DIRTYPE), entry("d/up", tarfile.SYMTYPE, "../..")],
    [entry("d/e/up", tarfile.SYMTYPE, "../.."), entry("d/e/out", tarfile.SYMTYPE, "up/../../out")],
    [entry("here", tarfile.SYMTYPE, "."), entry("here/out")],
    [entry("here/in"), entry("here", tarfile.SYMTYPE, ".")],
    [entry("x", tarfile.SYMTYPE, "y"), entry("x/y", tarfile.SYMTYPE, "z")],
    [entry("hard", tarfile.LNKTYPE, "../out")],
    [entry("hard", tarfile.LNKTYPE, "/etc/passwd")],
    [entry("s", tarfile.SYMTYPE, "t"), entry("hard", tarfile.LNKTYPE, "s")],
    [entry("pipe", tarfile.FIFOTYPE)],
    [entry("disk", tarfile.BLKTYPE)],
    [entry("", tarfile.SYMTYPE, "x")],
    [entry("/".join("d" * 65) + "/f")],
    [entry("n" * 256)],
    [entry("d", tarfile.DIRTYPE), entry("d")],
    [entry("f"), entry("f/g")],
]


@pytest.mark.parametrize("members", HOSTILE, ids=lambda members: f"{members[-1].name[:20]} {members[-1].linkname}")
def test_what_leads_out_or_is_no_file_is_refused(
    unpack: Unpack, tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(BundleUnusable) as refused:
        unpack(*members)
    assert len(str(refused.value)) > len("bundle could not be unpacked:")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "inside"]


def test_an_absolute_name_lands_inside(unpack: Unpack) -> None:
    assert (unpack(entry("/etc/passwd")) / "etc" / "passwd").read_bytes() == b"code"


def long_chain(secret: Path) -> list[tarfile.TarInfo]:
    """Links that lead through more steps than a path may have: who resolves them by path gives up in the middle."""
    members, path, name = [], "", "d" * 247
    for letter in "abcdefghijklmnop":
        path = f"{path}/{name}" if path else name
        members.append(entry(path, tarfile.DIRTYPE))
        members.append(entry(f"{path.rpartition('/')[0]}/{letter}".lstrip("/"), tarfile.SYMTYPE, name))
        path = f"{path.rpartition('/')[0]}/{letter}".lstrip("/")
    way = "/".join("abcdefghijklmnop")
    members.append(entry(f"{way}/{'l' * 254}", tarfile.SYMTYPE, "../" * 16))
    members.append(entry("escape", tarfile.SYMTYPE, f"{way}/{'l' * 254}/{os.path.relpath(secret, '/')}"))
    members.append(entry("escape/pwned"))
    members.append(entry("hard", tarfile.LNKTYPE, f"escape/{secret.name}"))
    return members


def test_a_chain_of_links_longer_than_any_path_leads_nowhere(unpack: Unpack, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "secret").write_text("root's own")
    with pytest.raises(BundleUnusable):
        unpack(*long_chain(secret))
    assert [path.name for path in secret.iterdir()] == ["secret"]
    assert (secret / "secret").stat().st_nlink == 1


@pytest.mark.parametrize(
    "content", [b"no archive at all", b"", packed(entry("a"))[:700], packed(entry("a"), mode="w:gz")[:40]]
)
def test_what_is_no_archive_is_refused_with_a_sentence(unpack: Unpack, content: bytes) -> None:
    with pytest.raises(BundleUnusable, match="could not be unpacked"):
        unpack(content=content or b"\0")


def test_a_bomb_is_refused(unpack: Unpack, tmp_path: Path) -> None:
    huge = entry("zeros")
    huge.size = child.MOST_BYTES + 1
    with pytest.raises(BundleUnusable, match="unpacks to more than 4 GiB"):
        unpack(content=huge.tobuf() + b"\0" * 1024)
    long_name = tarfile.TarInfo("x")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 3 << 30
    (tmp_path / "inside").rmdir()
    with pytest.raises(BundleUnusable):
        unpack(content=long_name.tobuf() + b"\0" * 1024)


@pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")
def test_a_root_agent_unpacks_as_the_user_of_stages(unpack: Unpack) -> None:
    folder = unpack(
        entry("pkg/run.sh"), entry("latest", tarfile.SYMTYPE, "pkg"), run_as=RunAs("nobody", NOBODY, NOBODY)
    )
    assert {path.lstat().st_uid for path in [folder, *folder.rglob("*")]} == {NOBODY}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "until it is handed over"


@pytest.mark.parametrize("python", [path for path in ("/usr/bin/python3", sys.executable) if os.path.exists(path)])
def test_no_filter_of_the_standard_library_is_relied_on(tmp_path: Path, python: str) -> None:
    """The child alone, as each Python here runs it: with and without the filters of later versions."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "bundle").write_bytes(packed(*long_chain(tmp_path)))
    script = (
        "import sys; sys.path.append(sys.argv[1]); from agents.storage.unpack import main; sys.exit(main(3, '', ''))"
    )
    command = f'exec 3<"{tmp_path}/inside" && exec {python} -I -S -c "{script}" {ROOT} <"{tmp_path}/bundle"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith('"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "inside"]
