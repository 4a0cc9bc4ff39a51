"""What the shells complete: verbs, options and names, and never a name that means something to a shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.cli.completion import safe, words
from switchyard.cli.verbs import SUMMARY

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_verb_and_its_shell_takes_it(yard, shell):
    _, out, _ = yard("completion", shell)
    assert all(name in out for name in SUMMARY)
    assert all(option.lstrip("-") in out for own in words().values() for option in own)
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=out, text=True, check=True, env={"HOME": "/nowhere", "PATH": os.defpath})


def completed(yard, *line: str, names: str = "") -> list[str]:
    """What bash offers for a command line, with a ``yard`` that knows these names and says what it was asked."""
    _, out, _ = yard("completion", "bash")
    script = f'''yard() {{ [[ $2 == --names ]] && printf "%s\\n" {names} "kind-$3"; }}
{out}
COMP_WORDS=({" ".join(repr(word) for word in line)})
COMP_CWORD={len(line) - 1}; _yard; printf "%s\\n" "${{COMPREPLY[@]}}"'''
    return subprocess.run(["bash", "-c", script], text=True, check=True, capture_output=True).stdout.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (["yard", "canc"], ["cancel"]),
        (["yard", "wait", "--ti"], ["--timeout"]),
        (["yard", "why", ""], ["17", "g07", "kind-jobs"]),
        (["yard", "cancel", "17", "1"], ["17"]),
        (["yard", "drain", "g"], ["g07"]),
        (["yard", "drain", ""], ["17", "g07", "kind-nodes"]),
        (["yard", "ps", "-p", ""], ["17", "g07", "kind-projects"]),
        (["yard", "submit", "--pool", "k"], ["kind-pools"]),
        (["yard", "ps", "-o", "j"], ["json", "jsonl"]),
        (["yard", "logs", "1", "--stream", ""], ["out", "err", "both"]),
        (["yard", "run", "--", "x"], []),
    ],
)
def test_bash_offers_what_fits_there(yard, line, wanted):
    assert completed(yard, *line, names="17 g07") == wanted


def test_names_are_asked_for_once_and_kept_for_a_while(yard, server, said, as_job, no_config):
    server.on("GET", "/jobs", said(200, {"results": [as_job(12), as_job(7)], "next": None}))
    server.on("GET", "/nodes", said(200, {"results": [{"name": "g07"}, {"name": "$(reboot)"}], "next": None}))
    for _ in range(2):
        assert yard("completion", "--names", "jobs") == (0, "12\n7\n", "")
    assert yard("completion", "--names", "nodes") == (0, "g07\n", "")
    assert [asked.path for asked in server.asked] == ["/api/v1/jobs", "/api/v1/nodes"]
    kept = list((Path(os.environ["HOME"]) / ".cache/yard").iterdir())
    assert len(kept) == 2
    os.utime(kept[0], (0, 0))
    os.utime(kept[1], (0, 0))
    yard("completion", "--names", "jobs")
    assert len(server.to("GET", "/jobs")) == 2


def test_where_nobody_answers_there_are_no_names_and_no_words(yard, server, as_problem, monkeypatch):
    server.on("GET", "/projects", as_problem(401, "unauthenticated", "who are you?"))
    assert yard("completion", "--names", "projects") == (0, "", "")
    monkeypatch.setenv("YARD_URL", "http://127.0.0.1:9")
    assert yard("completion", "--names", "pools") == (0, "", "")
    monkeypatch.setenv("YARD_URL", "nonsense")
    assert yard("completion", "--names", "pools") == (0, "", "")


def test_an_answer_that_does_not_come_is_not_waited_for(server, said):
    """The command ends while the server is still silent: it answers only when the command has ended."""
    import threading

    over = threading.Event()

    def silent(asked):
        assert over.wait(60)
        return said(200, {"results": [], "next": None})

    server.on("GET", "/pools", silent)
    env = {**os.environ, "YARD_URL": server.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "switchyard", "completion", "--names", "pools"], env=env, capture_output=True, timeout=60
    )
    over.set()
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@given(st.lists(st.text()))
def test_no_name_means_anything_to_a_shell(found):
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) for name in safe(found))


def test_columns_can_be_chosen_by_their_titles(yard, server, said, as_job):
    server.on("GET", "/jobs", said(200, {"results": [as_job(12)], "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [], "next": None}))
    assert yard("ps", "--columns", "pool,Job,where-or-why") == (0, "POOL\tJOB\tWHERE OR WHY\ndefault\t12\t-\n", "")
    for words_, wanted in ((["--columns", "nope"], "where_or_why"), (["--columns", "job", "--json"], "for json")):
        code, out, err = yard("ps", *words_)
        assert (code, out, wanted in err) == (2, "", True)
