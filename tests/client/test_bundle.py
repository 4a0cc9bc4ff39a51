"""Bundles: the same files give the same bytes, Git's own judgement decides what stays, and nothing leads outside."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from switchyard.bundle import pack
from switchyard.problem import BundleError


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(root: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack(root).content)) as tar:
        return tar.getnames()


def test_the_same_files_give_the_same_bytes_whenever_and_by_whomever_they_were_written(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for root, order in ((one, ["b.py", "a/x.py"]), (two, ["a/x.py", "b.py"])):
        for name in order:
            write(root, **{name: "same"})
    os.utime(two / "b.py", (1, 1))
    (two / "b.py").chmod(0o600)
    assert pack(one).sha256 == pack(two).sha256


@pytest.mark.parametrize("change", ["content", "name", "executable", "new file"])
def test_any_change_that_a_job_could_see_changes_the_name(tmp_path, change):
    write(tmp_path, **{"run.sh": "echo"})
    before = pack(tmp_path).sha256
    if change == "content":
        (tmp_path / "run.sh").write_text("echo 2")
    elif change == "name":
        (tmp_path / "run.sh").rename(tmp_path / "go.sh")
    elif change == "executable":
        (tmp_path / "run.sh").chmod(0o755)
    else:
        write(tmp_path, new="")
    assert pack(tmp_path).sha256 != before


RULES = """
# a comment
*.log
!keep.log
/top.txt
build/
data/**/*.bin
**/cache
docs/*.md
a?c
[xyz].py
[!m]n.c
\\!odd
trailing\\ 
sub/deep
"""  # noqa: W291 - the escaped blank is the point
TREE = [
    "a.log", "keep.log", "sub/b.log", "sub/keep.log", "top.txt", "sub/top.txt", "build/out.o", "sub/build/out.o",
    "build.txt", "data/1.bin", "data/p/q/2.bin", "data/1.txt", "cache/x", "p/q/cache/y", "docs/a.md", "docs/sub/b.md",
    "abc", "ac", "a/c",
    "x.py", "w.py", "mn.c", "nn.c", "!odd", "trailing ", "sub/deep/z", "p/sub/deep/z", "p/again.tmp", "p/stay.tmp",
    "unicode-行.txt",
]  # fmt: skip


def test_what_is_left_out_is_what_git_leaves_out(tmp_path):
    write(tmp_path, **{".gitignore": RULES, "p/.gitignore": "*.tmp\n!stay.tmp\n"}, **dict.fromkeys(TREE, "x"))
    git = ["git", "-c", "core.quotePath=false", "-c", "core.excludesFile=/dev/null"]
    subprocess.run([*git, "init", "-q", "."], cwd=tmp_path, check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], cwd=tmp_path, check=True, capture_output=True
    )
    assert sorted(names(tmp_path)) == sorted(listed.stdout.decode().split("\0")[:-1])


def test_a_yardignore_leaves_out_more_and_takes_back_in(tmp_path):
    write(
        tmp_path,
        **{".gitignore": "*.pt\n", ".yardignore": "!small.pt\nnotes/\n", "small.pt": "", "big.pt": "", "notes/a": ""},
    )
    assert names(tmp_path) == [".gitignore", ".yardignore", "small.pt"]


def test_history_caches_tokens_and_virtual_environments_stay_at_home(tmp_path):
    write(
        tmp_path,
        **{
            ".git/config": "",
            "__pycache__/a.pyc": "",
            ".yard.toml": "token",
            "env/pyvenv.cfg": "",
            "env/bin/python": "",
            "a": "",
        },
    )
    assert names(tmp_path) == ["a"]
    assert pack(tmp_path).left_out == ("env/: a virtual environment",)


def test_a_link_that_leads_out_is_left_out_and_named_and_an_inner_one_stays(tmp_path):
    root = tmp_path / "code"
    write(root, real="x")
    write(tmp_path, secret="s")
    (root / "inner").symlink_to("real")
    (root / "outer").symlink_to("../secret")
    (root / "absolute").symlink_to(root / "real")
    packed = pack(root)
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
        assert tar.getnames() == ["inner", "real"]
        tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out" / "inner").read_text() == "x"
    assert [text.partition(":")[0] for text in packed.left_out] == ["absolute", "outer"]


def test_a_bundle_above_the_cap_is_refused_and_names_what_is_large(tmp_path):
    (tmp_path / "model.pt").write_bytes(os.urandom(40_000))
    write(tmp_path, small="x")
    with pytest.raises(BundleError, match=r"model\.pt.*\.yardignore"):
        pack(tmp_path, cap_bytes=20_000)


def test_a_data_set_is_refused_before_it_is_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr("switchyard.bundle.SOURCE_CAP_BYTES", 1000)
    (tmp_path / "zeros").write_bytes(bytes(5000))
    with pytest.raises(BundleError, match="zeros"):
        pack(tmp_path, cap_bytes=900)


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(BundleError, match="is not a folder"):
        pack(tmp_path / "none")
