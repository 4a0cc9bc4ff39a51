"""The yard command from the outside: what it prints, where, and what it exits with."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.address import find
from switchyard.cli.login import by_code
from switchyard.cli.main import parser_of
from switchyard.cli.verbs import SUMMARY
from switchyard.client import Client
from switchyard.problem import ApiProblem, WaitTimeout

ROOT = Path(__file__).parents[2]


def process(server, *words: str, **more) -> subprocess.Popen:
    env = {**os.environ, "YARD_URL": server.url, "YARD_TOKEN": "t", "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True} | more
    return subprocess.Popen([sys.executable, "-m", "switchyard", *words], env=env, **streams)


# ---------------------------------------------------------------------------------------------------- asking for help


def test_help_names_every_verb(yard):
    code, out, _ = yard("--help")
    assert code == 0
    assert all(f"  {name} " in out for name in SUMMARY)


@pytest.mark.parametrize("verb", SUMMARY)
def test_every_verb_has_help_with_three_examples(yard, verb):
    code, out, _ = yard(verb, "--help")
    assert code == 0
    examples = out.partition("examples:\n")[2].splitlines()
    assert len(examples) == 3
    assert all("yard " in line for line in examples)
    assert yard("help", verb)[1] == out


@pytest.mark.parametrize("verb", SUMMARY)
def test_no_word_of_a_verb_is_taken_for_who_asks(verb):
    """A positional argument named as --token is would be sent to the server as the access token."""
    names = Counter(action.dest for action in parser_of(verb)._actions)
    assert {name: names[name] for name in ("url", "token", "profile")} == {"url": 1, "token": 1, "profile": 1}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["pss"], "yard ps"),
        (["squeue"], "yard ps"),
        (["sbatch"], "yard submit"),
        (["ps", "--usr", "x"], "--user"),
        (["submit", "--"], "train.py"),
        (["exec", "17"], "-it for a shell"),
        (["exec", "-it", "17"], "leave out -t"),
        (["ps", "-s", "NOPE"], "ps --help"),
        (["wait", "1", "--timeout", "soon"], "wait --help"),
    ],
)
def test_a_slip_gets_a_suggestion_and_the_code_for_usage(yard, words, hint):
    code, out, err = yard(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert hint in err.partition("hint:")[2]


def test_no_verb_at_all_shows_help_and_does_nothing(yard, server):
    assert yard()[0] == 0
    assert server.asked == []


# -------------------------------------------------------------------------------------------------- lists and formats


@pytest.fixture
def two_jobs(server, said, as_job):
    rows = [
        as_job(2, "RUNNING", name="行列 train"),
        as_job(1, "PENDING", reason={"code": "Held", "text": "on hold by mia"}),
    ]
    server.on("GET", "/jobs", said(200, {"results": rows, "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [], "next": None}))
    return rows


def test_json_is_the_json_of_the_interface(yard, two_jobs):
    assert json.loads(yard("ps", "--json")[1]) == two_jobs
    assert [json.loads(line) for line in yard("ps", "-o", "jsonl")[1].splitlines()] == two_jobs


def test_yaml_and_names(yard, two_jobs):
    import yaml

    assert yaml.safe_load(yard("ps", "-o", "yaml")[1]) == two_jobs
    assert yard("ps", "-q")[1] == "2\n1\n"


def test_a_pipe_gets_columns_that_can_be_counted_and_no_colour(yard, two_jobs):
    _, out, _ = yard("ps")
    header, first, second = (line.split("\t") for line in out.splitlines())
    assert header == ["JOB", "NAME", "STATE", "PROJECT", "USER", "TIME", "DONE", "WHERE OR WHY"]
    assert first[:4] == ["2", "行列 train", "RUNNING", "vision"]
    assert (first[-1], second[-1]) == ("-", "on hold by mia")
    assert "\x1b" not in out
    assert yard("ps", "--no-headers")[1].splitlines() == out.splitlines()[1:]


def test_a_table_is_aligned_whatever_the_width_of_its_letters(yard, two_jobs):
    header, first, second = yard("ps", "-o", "table")[1].splitlines()
    assert header.index("STATE") == second.index("PENDING") == first.index("RUNNING") + len("行列")


def test_a_list_asks_for_what_the_options_say(yard, server, two_jobs):
    yard("ps")
    yard("ps", "-a", "-u", "all", "-p", "vision", "-s", "failed,canceled", "-n", "5")
    mine, all_ = server.to("GET", "/jobs")
    assert (mine.query["user"], "FAILED" in mine.query["state"], "PENDING" in mine.query["state"]) == (
        "me",
        False,
        True,
    )
    assert (all_.query["state"], all_.query["project"], "user" in all_.query) == ("FAILED,CANCELLED", "vision", False)


def test_jobs_of_the_last_hours_are_asked_for_by_their_submit(yard, server, two_jobs):
    before = datetime.now(UTC) - timedelta(hours=2)
    assert yard("ps", "--since", "2h")[0] == 0
    after = datetime.now(UTC) - timedelta(hours=2)
    for path in ("/jobs", "/arrays"):
        (asked,) = server.to("GET", path)
        assert before <= datetime.fromisoformat(asked.query["submitted_after"]) <= after
    assert yard("ps", "--since", "99999999999d")[0] == 0
    assert yard("ps", "--since", "soon")[0] == 2


def test_a_single_fault_that_is_the_whole_sentence_is_told_once(yard, server, as_problem):
    fault = {"pointer": "/cron", "detail": "61 is no minute", "code": "invalid"}
    server.on("GET", "/jobs/12", as_problem(422, "invalid", "/cron: 61 is no minute", errors=[fault]))
    assert yard("show", "12")[2].count("61 is no minute") == 1
    server.on("GET", "/jobs/13", as_problem(422, "invalid", "the file has 2 faults", errors=[fault, fault]))
    assert yard("show", "13")[2].count("61 is no minute") == 2
    server.on("GET", "/jobs/14", as_problem(422, "invalid", "it cannot be", errors=[fault]))
    assert yard("show", "14")[2].count("61 is no minute") == 1


ARRAY = {
    "number": 7,
    "name": "tune",
    "state": "RUNNING",
    "count": 9,
    "counts": {"RUNNING": 2, "PENDING": 6, "COMPLETED": 1},
}


def test_an_array_is_one_line_among_the_jobs_unless_its_elements_are_asked_for(yard, server, said, as_job):
    element = as_job(9, "RUNNING", array={"number": 7, "index": 1})
    server.on(
        "GET", "/jobs", said(200, {"results": [as_job(12), as_job(3)], "next": None}), said(200, {"results": [element]})
    )
    server.on("GET", "/arrays", said(200, {"results": [ARRAY], "next": None}))
    lines = [line.split("\t") for line in yard("ps", "--no-headers")[1].splitlines()]
    assert [line[0] for line in lines] == ["12", "7", "3"]
    assert (lines[1][2], lines[1][6], lines[1][7]) == ("RUNNING", "11%", "2 RUNNING, 6 PENDING, 1 COMPLETED")
    assert yard("ps", "-r", "-q")[1] == "7_1\n"
    assert [asked.query.get("array") for asked in server.to("GET", "/jobs")] == ["none", None]


def test_what_was_stopped_early_has_done_its_part(yard, server, said):
    array = {**ARRAY, "state": "COMPLETED", "counts": {"COMPLETED": 3, "CANCELLED": 6}, "stopped_early": 6}
    server.on("GET", "/jobs", said(200, {"results": [], "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [array], "next": None}))
    assert "100%" in yard("ps", "--no-headers")[1]


def test_an_array_shows_the_rungs_at_which_its_worse_elements_are_stopped(yard, server, said, as_problem):
    rungs = [
        {"rung": 1, "step": 100, "reached": 5, "stopped": 3, "best": 0.25},
        {"rung": 2, "step": 300, "reached": 0, "stopped": 0, "best": None},
    ]
    halving = {"metric": "loss", "goal": "minimize", "min_steps": 100, "reduction_factor": 3, "rungs": rungs}
    whole = {"project": "vision", "user": "ada", "pool": "train", "submitted_at": None, "stopped_early": 3}
    server.on("GET", "/jobs/7", as_problem(404, "not_found", "there is no job 7 that you may see"))
    server.on("GET", "/arrays/7", said(200, {**ARRAY, **whole, "halving": halving}))
    text = yard("show", "7")[1]
    assert "  Halving   the best 1/3 go on, minimize loss; 3 stopped so far" in text
    assert "step 100: 5 reached it, 3 stopped, best 0.25" in text
    assert "step 300: 0 reached it, 0 stopped\n" in text


def test_a_number_may_be_that_of_an_array(yard, server, said, as_problem):
    server.on("POST", "/jobs/7/cancel", as_problem(404, "not_found", "there is no job 7 that you may see"))
    server.on("POST", "/arrays/7/cancel", said(200, ARRAY))
    assert yard("cancel", "7")[1] == "array 7: 2 RUNNING, 6 PENDING, 1 COMPLETED\n"
    server.on("GET", "/jobs/7", as_problem(404, "not_found", "there is no job 7 that you may see"))
    server.on("GET", "/arrays/7", said(200, {**ARRAY, "state": "FAILED"}))
    code, _, err = yard("wait", "7")
    assert (code, err) == (1, "array 7 FAILED: 2 RUNNING, 6 PENDING, 1 COMPLETED\n")
    server.on("GET", "/jobs/8", as_problem(404, "not_found", "there is no job 8 that you may see"))
    server.on("GET", "/arrays/8", as_problem(404, "not_found", "there is no array 8 that you may see"))
    assert "no job 8" in yard("show", "8")[2]


def test_a_cut_list_says_so(yard, two_jobs):
    _, out, err = yard("ps", "-n", "1", "-q")
    assert out == "2\n"
    assert "newest 1" in err


def test_an_empty_list_says_how_it_would_be_longer(yard, server, said):
    server.on("GET", "/jobs", said(200, {"results": [], "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [], "next": None}))
    code, out, err = yard("ps")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "-a" in err


def test_a_hostile_name_does_not_reach_the_terminal(yard, server, said, as_job):
    evil = as_job(1, "PENDING", name="\x1b]0;owned\x07x\nerror: y", reason={"code": "Held", "text": "\x9b2Jgone"})
    server.on("GET", "/jobs", said(200, {"results": [evil], "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [], "next": None}))
    server.on("GET", "/jobs/1", said(200, evil))
    server.on("GET", "/jobs/1/attempts", said(200, {"results": []}))
    server.on("GET", "/jobs/1/why", said(200, {"number": 1, "state": "PENDING", "reason": None, "stages": []}))
    for words in (["ps", "--json"], ["ps", "-o", "yaml"], ["show", "1", "-o", "jsonl"]):
        _, out, _ = yard(*words)
        assert "\x1b" not in out
        assert "\x9b" not in out
    for words in (["ps"], ["show", "1"], ["why", "1"]):
        _, out, _ = yard(*words)
        assert "\x1b" not in out
        assert "\x9b" not in out
        assert "owned" not in out
        assert not any(line.startswith("error:") for line in out.splitlines())


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(404, "not_found", 3), (403, "permission_denied", 4), (409, "illegal_transition", 5)],
)
def test_a_refusal_goes_to_standard_error_with_code_hint_and_trace(yard, server, as_problem, status, code, exit_code):
    server.on("GET", "/jobs/7", as_problem(status, code, "no \x1b[31mway", hint="do else"))
    found, out, err = yard("show", "7")
    assert (found, out) == (exit_code, "")
    assert err == f"error: no way ({code})\n  hint: do else\n  trace: abc123\n"


def test_the_faults_of_a_job_file_are_listed(yard, server, as_problem):
    faults = [{"pointer": "/cpuz", "detail": 'there is no key "cpuz" here; did you mean cpus?', "code": "unknown_key"}]
    server.on("POST", "/jobs", as_problem(422, "invalid_spec", "the job file has a fault", errors=faults))
    code, _, err = yard("submit", "--set", "cpuz=1", "--", "true")
    assert code == 2
    assert '/cpuz: there is no key "cpuz" here; did you mean cpus?' in err


def test_nobody_there_is_code_six(yard, monkeypatch, server):
    monkeypatch.setenv("YARD_URL", "http://127.0.0.1:9")
    code, _, err = yard("ps")
    assert code == 6
    assert "127.0.0.1:9" in err


def test_one_refusal_among_several_does_not_stop_the_rest(yard, server, said, as_job, as_problem):
    server.on("POST", "/jobs/1/cancel", as_problem(409, "illegal_transition", "it has ended"))
    server.on("POST", "/jobs/2/cancel", said(200, as_job(2, "CANCELLED")))
    code, out, err = yard("cancel", "1", "2", "--reason", "wrong data")
    assert code == 5
    assert "job 2" in out
    assert "it has ended" in err
    assert server.to("POST", "/jobs/2/cancel")[0].json == {"reason": "wrong data"}


# --------------------------------------------------------------------------------------------- submitting and waiting


def test_submit_prints_the_number_and_nothing_else_when_quiet(yard, server, said, as_job):
    server.on("POST", "/jobs", said(201, as_job(42)))
    assert yard("submit", "-q", "--", "true")[:2] == (0, "42\n")
    assert yard("submit", "--", "true")[1] == "submitted job 42 (hello)\n"
    assert json.loads(yard("submit", "--json", "--", "true")[1])["number"] == 42


def test_a_dry_run_sends_no_folder_and_queues_nothing(yard, server, said, no_config):
    (no_config / "train.py").write_text("")
    found = {
        "verdict": "queued",
        "stages": [
            {
                "name": "main", "kind": "train", "starts_now": False, "why": "", "devices": [],
                "reasons": [{"code": "CapacityInsufficient", "text": "needs 8 gpu; 2 are free", "acts": "nobody"}],
                "funnel": [["ready", 4], ["8 gpu free", 0]], "expected_start": None,
                "expected_s": {"p50": None, "p90": None, "basis": "unknown: no like stage has ended", "seen": 3},
            }
        ],
        "preempts": [],
    }  # fmt: skip
    server.on("POST", "/jobs", said(200, found))
    code, out, _ = yard("submit", "--dry-run", "--devices", "gpu:8", "--", "python", "train.py")
    assert code == 0
    assert "would wait" in out
    assert "needs 8 gpu" in out
    assert "4 ready → 0 8 gpu free" in out
    assert "start unknown" in out
    assert "Runs      unknown: no like stage has ended\n" in out
    (asked,) = server.asked
    assert asked.query == {"dry_run": "placement"}
    assert "workdir" not in asked.json


def test_a_dry_run_of_the_impossible_exits_as_the_refused_submit_does(yard, server, said):
    fault = {"pointer": "/stages/0/devices", "code": "NoMatchingDevice", "detail": "stage main can never start: no npu"}
    found = {"verdict": "never", "stages": [], "preempts": [], "refused": [fault]}
    server.on("POST", "/jobs", said(200, found))
    for how in ([], ["-o", "json"]):
        code, out, _ = yard("submit", "--dry-run", *how, "--devices", "npu:8", "--", "python", "train.py")
        assert code == 2
        assert "stage main can never start: no npu" in out


def test_a_dry_run_tells_what_memory_of_a_device_would_do(yard, server, said):
    gib = 2**30
    advice = {"verdict": "generous", "kind": "gpu", "asked_bytes": 80 * gib, "largest_bytes": 31 * gib}
    advice |= {"suggested_bytes": 37.25 * gib, "ran_out": 0, "basis": "peaks of 3 finished stages like it"}
    shown = {"name": "main", "kind": "train", "starts_now": True, "why": "", "devices": [], "device_memory": advice}
    server.on("POST", "/jobs", said(200, {"verdict": "starts_now", "stages": [shown], "preempts": []}))
    code, out, _ = yard("submit", "--dry-run", "--no-workdir", "--", "true")
    assert code == 0
    assert "memory of each gpu: 37 GiB would do instead of 80 GiB; at most 31 GiB was used" in out
    assert "(peaks of 3 finished stages like it)" in out


@pytest.mark.parametrize(
    ("state", "exit_code", "code"), [("COMPLETED", None, 0), ("FAILED", 3, 3), ("CANCELLED", None, 8)]
)
def test_submit_wait_and_wait_exit_with_the_code_of_the_job(yard, server, said, as_job, state, exit_code, code):
    ended = as_job(12, state)
    ended["stages"][0] |= {"exit_code": exit_code, "cause": "EXIT_CODE" if exit_code else ""}
    server.on("POST", "/jobs", said(201, as_job(12)))
    server.on("GET", "/jobs/12", said(200, as_job(12, "RUNNING")), said(200, ended))
    assert yard("submit", "--wait", "--", "true")[0] == code
    found, _, err = yard("wait", "12")
    assert found == code
    assert state in err


def test_a_signal_is_found_in_the_attempts(yard, server, said, as_job):
    ended = as_job(12, "FAILED")
    ended["stages"][0] |= {"cause": "SIGNAL", "detail": "ended by signal 9"}
    server.on("GET", "/jobs/12", said(200, ended))
    server.on("GET", "/jobs/12/attempts", said(200, {"results": [{"stage": "main", "number": 1, "signal": 9}]}))
    assert yard("wait", "12")[0] == 137


def test_a_trace_is_awaited_and_its_failure_said(yard, server, said):
    asked = {"id": "t1", "stage": "main", "attempt": 1, "rank": 0, "node": "n1", "tool": "py-spy", "seconds": 5}
    asked |= {"state": "ASKED", "detail": "", "size_bytes": 0, "asked_by": "ada", "asked_at": "2026-01-01T00:00:00Z"}
    server.on("POST", "/jobs/12/traces", said(202, asked))
    server.on("GET", "/jobs/12/traces/t1", said(200, {**asked, "state": "FAILED", "detail": "no py-spy"}))
    server.on("GET", "/jobs/12/traces", said(200, {"results": [{**asked, "state": "READY", "size_bytes": 2048}]}))
    code, out, err = yard("trace", "12", "--seconds", "5")
    assert (code, out) == (1, "")
    assert "py-spy profiles rank 0 of main on n1 for 5 s" in err
    assert "error: no py-spy (failed)" in err
    assert yard("trace", "12", "--get", "t1")[0] == 2
    code, out, _ = yard("trace", "12", "--list")
    assert code == 0
    assert "2 KiB" in out
    assert json.loads(yard("trace", "12", "--list", "--json")[1])[0]["id"] == "t1"


def test_a_trace_is_written_to_a_file(yard, server, said, tmp_path):
    ready = {"id": "t1", "stage": "main", "attempt": 1, "rank": 0, "node": "n1", "tool": "py-spy", "seconds": 5}
    ready |= {"state": "READY", "detail": "", "size_bytes": 2}
    server.on("POST", "/jobs/12/traces", said(202, ready))
    server.on("GET", "/jobs/12/traces/t1", said(200, ready))
    server.on("GET", "/jobs/12/traces/t1/content", said(200, {}))
    code, out, _ = yard("trace", "12", "-o", str(tmp_path / "out"))
    assert (code, out) == (0, "")
    assert (tmp_path / "out").read_text() == "{}"
    assert yard("trace", "12", "-o", str(tmp_path / "none" / "out"))[0] == 2
    code, out, _ = yard("trace", "12")
    assert "yard trace 12 --get t1 -o FILE" in out


def test_a_wait_that_runs_out_is_code_seven(yard, server, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job(12, "RUNNING")))
    code, _, err = yard("wait", "12", "--timeout", "0.05s")
    assert code == 7
    assert "goes on" in err


# ----------------------------------------------------------------------------------------------------- output of jobs


def streams(server, said, as_job, state="COMPLETED", out=b"hello\n", err=b"careful\n"):
    held = {"out": out, "err": err}
    server.on("POST", "/jobs", said(201, as_job(12)))
    server.on("GET", "/jobs/12", said(200, as_job(12, state)))
    listed = [{"stage": "main", "attempt": 1, "rank": 0, "stream": s, "size_bytes": len(t)} for s, t in held.items()]
    server.on("GET", "/jobs/12/streams", said(200, {"results": listed}))

    def read(asked):
        text = held[asked.query["stream"]][int(asked.query.get("offset", 0)) :]
        return said(
            200, text, {"Content-Type": "text/plain", "X-Log-Next-Offset": str(len(held[asked.query["stream"]]))}
        )

    server.on("GET", "/jobs/12/logs", read)


def test_run_shows_both_streams_where_they_belong_and_exits_with_the_code(yard, server, said, as_job):
    streams(server, said, as_job)
    code, out, err = yard("run", "--", "true")
    assert (code, out) == (0, "hello\n")
    assert "careful\n" in err
    assert "COMPLETED" in err


def test_logs_are_cleaned_unless_raw(yard, server, said, as_job):
    streams(server, said, as_job, out=b"\x1b]0;owned\x07\x1b[31mred\x1b[0m\n")
    assert yard("logs", "12", "--stream", "out")[1] == "red\n"
    assert yard("logs", "12", "--stream", "out", "--raw")[1] == "\x1b]0;owned\x07\x1b[31mred\x1b[0m\n"


def test_logs_as_json_name_their_stream(yard, server, said, as_job):
    streams(server, said, as_job)
    found = [json.loads(line) for line in yard("logs", "12", "--json")[1].splitlines()]
    assert [(piece["stream"], piece["text"]) for piece in found] == [("out", "hello\n"), ("err", "careful\n")]


def searched(server, said, as_job):
    """A server that answers a search of standard output in two stretches, and finds nothing in the other stream."""
    streams(server, said, as_job)

    def search(asked):
        q = asked.query
        lines = {("out", "0"): (3, "hello \x1b]0;owned\x07world"), ("out", "64"): (70, "hello again")}
        here = lines.get((q["stream"], q["offset"]))
        results = [{"offset": here[0], "line_offset": 0, "line": here[1], "is_cut": False}] if here else []
        is_end = q["stream"] == "err" or q["offset"] == "64"
        told = {"results": results, "next_offset": 64 if q["offset"] == "0" else 128, "size_bytes": 128}
        return said(200, told | {"is_end": is_end})

    server.on("GET", "/jobs/12/logs/search", search)


def test_a_log_is_searched_by_the_server(yard, server, said, as_job):
    searched(server, said, as_job)
    code, out, err = yard("logs", "12", "--grep", "HELLO", "-i")
    assert (code, out, err) == (0, "main.1.0.out:3: hello world\nmain.1.0.out:70: hello again\n", "")
    asked = [request.query for request in server.asked if request.path.endswith("/logs/search")]
    assert {(one["text"], one["ignore_case"]) for one in asked} == {("HELLO", "true")}
    found = [json.loads(line) for line in yard("logs", "12", "--grep", "hello", "--json")[1].splitlines()]
    assert [(one["stream"], one["offset"]) for one in found] == [("out", 3), ("out", 70)]


def test_nothing_found_is_no_success_and_a_search_follows_nothing(yard, server, said, as_job):
    searched(server, said, as_job)
    assert yard("logs", "12", "--grep", "x", "--stream", "err")[:2] == (1, "")
    code, _, err = yard("logs", "12", "--grep", "x", "-f")
    assert code == 2
    assert "--follow" in err


def test_a_stage_that_is_not_there_is_named_with_those_that_are(yard, server, said, as_job):
    streams(server, said, as_job)
    code, _, err = yard("logs", "12", "--stage", "nope")
    assert code == 3
    assert "main" in err


def until(true) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to pass")


def test_ctrl_c_without_a_terminal_cancels_the_job_of_a_run(server, said, as_job):
    streams(server, said, as_job, state="RUNNING")
    server.on(
        "POST",
        "/jobs/12/cancel",
        lambda asked: streams(server, said, as_job, "CANCELLED") or said(200, as_job(12, "CANCELLED")),
    )
    running = process(server, "run", "--", "sleep", "60")
    until(lambda: server.to("GET", "/jobs/12/logs"))
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 8
    assert "cancels job 12" in err
    assert len(server.to("POST", "/jobs/12/cancel")) == 1


@pytest.mark.parametrize(("answer", "code", "cancels"), [("d\n", 130, 0), ("c\n", 8, 1)])
def test_ctrl_c_on_a_terminal_asks_whether_to_detach_or_cancel(server, said, as_job, answer, code, cancels):
    streams(server, said, as_job, state="RUNNING")
    server.on(
        "POST",
        "/jobs/12/cancel",
        lambda asked: streams(server, said, as_job, "CANCELLED") or said(200, as_job(12, "CANCELLED")),
    )
    ours, theirs = pty.openpty()
    running = process(server, "run", "--", "sleep", "60", stdin=theirs, stdout=theirs, stderr=theirs, text=False)
    os.close(theirs)
    until(lambda: server.to("GET", "/jobs/12/logs"))
    running.send_signal(signal.SIGINT)
    seen = b""
    while b"etach" not in seen:
        seen += os.read(ours, 4096)
    os.write(ours, answer.encode())
    assert running.wait(timeout=30) == code
    os.close(ours)
    assert len(server.to("POST", "/jobs/12/cancel")) == cancels


def test_ctrl_c_in_logs_only_detaches(server, said, as_job):
    streams(server, said, as_job, state="RUNNING")
    reading = process(server, "logs", "-f", "12")
    until(lambda: server.to("GET", "/jobs/12/logs"))
    time.sleep(0.1)
    reading.send_signal(signal.SIGINT)
    _, err = reading.communicate(timeout=30)
    assert reading.returncode == 130
    assert "goes on" in err
    assert not [asked for asked in server.asked if asked.method == "POST"]


def test_a_reader_that_stops_reading_is_no_error(server, said, as_job):
    rows = [as_job(n) for n in range(500)]
    server.on("GET", "/jobs", said(200, {"results": rows * 10, "next": None}))
    server.on("GET", "/arrays", said(200, {"results": [], "next": None}))
    listing = process(server, "ps", "-o", "jsonl", "-n", "5000")
    assert listing.stdout
    listing.stdout.readline()
    listing.stdout.close()
    assert listing.wait(timeout=30) == 128 + signal.SIGPIPE
    assert listing.stderr
    assert listing.stderr.read() == ""
    listing.stderr.close()


# -------------------------------------------------------------------------------------------- reasons, nodes, devices


def test_why_tells_the_kind_of_a_failure_and_the_last_lines(yard, server, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job(12, "FAILED")))
    server.on("GET", "/jobs/12/why", said(200, {"number": 12, "state": "FAILED", "stages": []}))
    failed = {
        "stage": "main", "kind": "import", "title": "A module is missing", "advice": "Add it to the image.",
        "cause": "EXIT_CODE", "exit_code": 1, "attempt": 2, "rank": 3, "node": "g07",
        "lines": "Traceback\nModuleNotFoundError: \x1b[2J'flash_attn'",
    }  # fmt: skip
    server.on("GET", "/jobs/12/failures", said(200, {"results": [failed]}))
    cause = {"code": "QuotaExhausted", "of": "quota", "acts": "lead", "waited_s": 95.0, "share": 1.0}
    waits = {"stage": "main", "waited_s": 100.0, "unrecorded_s": 5.0, "causes": [cause]}
    server.on("GET", "/jobs/12/waits", said(200, {"results": [waits]}))
    code, out, _ = yard("why", "12")
    lines = [line.strip() for line in out.splitlines()]
    assert code == 0
    assert any("A module is missing (attempt 2, rank 3 on g07)" in line for line in lines)
    assert any(line.endswith("Add it to the image.") for line in lines)
    assert any(line.endswith("QuotaExhausted, 5s not recorded") for line in lines)
    assert "| Traceback" in lines
    assert "\x1b" not in out


def test_why_tells_primary_others_filters_and_the_expected_start(yard, server, said, as_job):
    waiting = as_job(12, "PENDING")
    reasons = [
        {
            "code": "CapacityInsufficient",
            "text": "needs 8 gpu; the largest free share of a node is 2",
            "acts": "nobody",
            "params": {},
        },
        {"code": "PriorityBehind", "text": "3 stages are ahead", "acts": "nobody", "params": {}},
    ]
    told = {
        "reasons": reasons, "funnel": [["nodes", 64], ["ready", 12]], "evaluated_at": "2026-11-21T03:00:00Z",
        "planned": None, "expected_start": {
            "low_at": "2026-11-21T14:20:00Z", "high_at": "2026-11-21T15:05:00Z",
            "basis": "from what runs and waits ahead", "held": 41, "seen": 52},
        "expected_s": {"p50": 480.0, "p90": 700.0, "basis": "from 4 runs of this stage", "held": 44, "seen": 50},
    }  # fmt: skip
    waiting["stages"][0] |= {**told, "reason": reasons[0]}
    server.on("GET", "/jobs/12", said(200, waiting))
    why = {
        "number": 12,
        "state": "PENDING",
        "reason": reasons[0],
        "stages": [{"stage": "main", "state": "PENDING", **told}],
    }
    server.on("GET", "/jobs/12/why", said(200, why))
    tried = {"text": "with a time limit of 3 h", "who": "user"}
    answer = {"changes": [tried], "preempts": [], "instead_of": ["#9/fit"], "allowed": True}
    server.on("GET", "/jobs/12/counterfactuals", said(200, {"stages": [{"stage": "main", "answers": [answer]}]}))
    _, out, _ = yard("why", "12")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert "needs 8 gpu" in lines["Primary"]
    assert "no action needed" in lines["Primary"]
    assert "3 stages are ahead" in lines["Also"]
    assert "from what runs and waits ahead; 41 of 52 such starts held" in lines["Next"]
    runs = "about 8m00s, nine of ten within 11m (from 4 runs of this stage; 44 of 50 such run times held)"
    assert runs in lines["Runs"]
    assert "64 nodes → 12 ready" in lines["Filters"]
    assert lines["Faster"].endswith("with a time limit of 3 h: starts now, instead of #9/fit")
    assert json.loads(yard("why", "12", "--json")[1]) == why


def device(uuid, **more):
    return {
        "uuid": uuid, "node": "g07", "kind": "gpu", "vendor": "nvidia", "model": "H100", "index": 0,
        "memory_bytes": 80 << 30,
        "capacity_milli": 1000, "claimed_milli": 1000, "claimed_memory_bytes": 0, "mode": "shared", "health": "OK",
        "health_reason": "", "simulated": False, "sample": None, "claims": [], **more,
    }  # fmt: skip


def test_a_value_that_nobody_measured_is_not_shown_as_zero(yard, server, said):
    sample = {
        "utilisation": 0.0,
        "memory_used_bytes": 0,
        "power_w": None,
        "temperature_c": None,
        "at": "2026-11-21T03:00:00Z",
    }
    rows = [device("a"), device("b", index=1, sample=sample, claims=[{"job": 12, "stage": "train", "milli": 1000}])]
    server.on("GET", "/devices", said(200, {"results": rows, "next": None}))
    header, unknown, measured = (line.split("\t") for line in yard("top", "--once")[1].splitlines())
    at = header.index("BUSY")
    assert (unknown[at], measured[at], measured[-1]) == ("-", "0%", "12/train")


def test_simulated_devices_are_marked(yard, server, said):
    server.on("GET", "/devices", said(200, {"results": [device("a", simulated=True)], "next": None}))
    header, row = (line.split("\t") for line in yard("devices")[1].splitlines())
    assert row[header.index("SIMULATED")] == "yes"


def test_the_live_screens_draw_every_device(no_config):
    from collections import defaultdict, deque

    from rich.console import Console

    from switchyard.cli import top

    found = [device(str(n), node=f"g{n // 8}", index=n % 8, sample={"utilisation": n / 16}) for n in range(16)]
    found[3] |= {"health": "LOST", "model": "\x1b]0;x\x07bad [red]name"}
    past = defaultdict(lambda: deque([0.5, None], maxlen=4))
    for height in (40, 6):
        console = Console(width=150, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
        console.print(top._screen(found, past, "http://x", 42.0, height))
        text = console.export_text()
        console.file.close()
        assert "16 gpu; held: 16 gpu" in text
        assert "no answer for 42s" in text
        assert "g0" in text
        assert "g1" in text
        assert "owned" not in text
    assert "x" in text.splitlines()[1]


def attempts(*rows):
    found = [
        {"id": f"a{n}", "stage": "main", "number": n, "ended_at": None, "stop_why": "", "parts": [], **row}
        for n, row in enumerate(rows, 1)
    ]
    return {"results": found, "next": None}


def test_what_runs_is_adjusted_and_nothing_else(yard, server, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING", stages=[{"name": "main", "state": "SUSPENDED"}])))
    server.on(
        "GET", "/jobs/12/attempts", said(200, attempts({"ended_at": "x"}, {"stop_why": "MOVE"}, {}, {"stage": "other"}))
    )
    server.on(
        "POST", "/attempts/a3/adjust", said(200, {"id": "a3", "stage": "main", "number": 3, "parts": [{"spec_rev": 2}]})
    )
    words = ("--stage", "main", "--pause", "--cpus", "0.5", "--memory", "1.5GiB", "--queue", "auto", "--quantum", "2s")
    code, out, _ = yard("adjust", "12", *words, "--rank", "1", "--cpu-weight", "20", "--reason", "demo")
    assert (code, out) == (0, "main attempt 3: SUSPENDED, revision 2\n")
    (asked,) = [each for each in server.asked if each.method == "POST"]
    assert asked.path == "/api/v1/attempts/a3/adjust"
    assert asked.headers["idempotency-key"]
    assert asked.json == {
        "suspended": True,
        "cpus_milli": 500,
        "memory_bytes": 3 << 29,
        "queue_class": None,
        "quantum_s": 2.0,
        "cpu_weight": 20,
        "ranks": [1],
        "reason": "demo",
    }


def test_an_adjustment_that_says_nothing_or_meets_nothing_is_told(yard, server, said):
    assert yard("adjust", "12")[0] == 2
    assert yard("adjust", "12", "--pause", "--go-on")[0] == 2
    assert "write it like 512MiB" in yard("adjust", "12", "--memory", "much")[2]
    server.on("GET", "/jobs/12/attempts", said(200, attempts()))
    code, out, err = yard("adjust", "12", "--go-on")
    assert (code, out) == (5, "")
    assert "nothing of job 12 runs" in err


def test_show_tells_what_a_running_part_gets_and_what_could_not_be(yard, server, said, as_job):
    part = {"rank": 0, "node": "g7", "spec_rev": 3, "seen_rev": 2, "share": {"cpu_weight": 50}, "notes": ["no\x1b way"]}
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING")))
    server.on("GET", "/jobs/12/attempts", said(200, attempts({"parts": [part]})))
    out = yard("show", "12")[1]
    assert "rank 0 on g7: cpu_weight 50, not applied yet" in out
    assert "rank 0 on g7: no" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("kind", ["train", "validate"])
def test_show_tells_how_often_a_training_stage_is_to_save_and_why(yard, server, said, as_job, kind):
    job = as_job(state="RUNNING")
    job["stages"][0] |= {"kind": kind, "checkpoint_every_s": 5400.0, "checkpoint_every_why": "its saves took 4 s"}
    server.on("GET", "/jobs/12", said(200, job))
    server.on("GET", "/jobs/12/attempts", said(200, attempts()))
    assert ("every 1h30m: its saves took 4 s" in yard("show", "12")[1]) == (kind == "train")


DRAIN = {
    "nodes": ["g07", "g08"],
    "states": ["DRAINING", "DRAINED"],
    "dry_run": False,
    "version": '"v1"',
    "affects": {
        "jobs": 1,
        "owners": ["mia"],
        "lost_device_s": 14_400.0,
        "hidden": 0,
        "stages": [
            {"job": 12, "stage": "train", "user": "mia", "nodes": ["g07", "g08"], "lost_device_s": 14_400.0},
        ],
    },
    "outcomes": [
        {"mode": "finish", "stops": 0, "lost_device_s": 0.0, "empty_in_s": 3600.0, "empty_within_s": 7200.0},
        {"mode": "now", "stops": 1, "lost_device_s": 14_400.0, "empty_in_s": 0.0, "empty_within_s": 0.0},
    ],
}


def test_a_drain_needs_a_reason(yard, server, said):
    assert yard("drain", "g07")[0] == 2
    assert yard("drain", "g07", "--reason", "x", "--mode", "now", "--deadline", "2h")[0] == 2
    server.on("POST", "/nodes/drain", said(200, DRAIN))
    assert yard("drain", "g07", "g08", "--reason", "fan swap", "--deadline", "2h")[:2] == (
        0,
        "node g07 DRAINING\nnode g08 DRAINED\n",
    )
    assert server.asked[-1].json == {
        "nodes": ["g07", "g08"],
        "mode": "finish",
        "deadline_s": 7200.0,
        "reason": "fan swap",
    }
    assert server.asked[-1].headers["if-match"] == "*"


def test_a_dry_run_of_a_drain_says_whose_work_is_lost_and_when_it_is_empty(yard, server, said):
    server.on("POST", "/nodes/drain", said(200, DRAIN))
    out = yard("drain", "g07", "--dry-run")[1]
    assert "1 job runs there of mia" in out
    assert "job 12 train of mia on g07, g08: 4.0 device-hours, it never saved" in out
    assert " finish: stops 0, loses 0.0 device-hours, empty in 1h00m, in 2h00m at most" in out
    assert "    now: stops 1, loses 4.0 device-hours, empty at once" in out


def test_version_tells_both_and_login_keeps_the_token(yard, server, said, monkeypatch):
    server.on("GET", "/version", said(200, {"server": "0.1.0", "api": "v1"}))
    server.on("GET", "/whoami", said(200, {"user": "mia", "name": "", "staff": False, "projects": []}))
    assert server.url in yard("version")[1]
    assert "mia" in yard("login", server.url)[1]
    monkeypatch.delenv("YARD_URL")
    monkeypatch.delenv("YARD_TOKEN")
    yard("version")
    assert server.asked[-1].headers["authorization"] == "Bearer t"


def test_what_a_node_has_set_aside_is_listed_and_decided_about(yard, server, said):
    part = {
        "part": "0f3c77",
        "since": "2026-11-20T00:00:00Z",
        "reason": "Undecodable: torn",
        "folder": "/s/parts/0f3c77",
    }
    other = {**part, "part": "0fff00", "asked": {"do": "release", "by": "root"}}
    node = {"name": "g07", "conditions": {"aside": [part, other]}}
    server.on("GET", "/nodes/g07", said(200, node))
    server.on("POST", "/nodes/g07/quarantine", said(200, {**node, "conditions": {"aside": [other]}}))
    code, out, _ = yard("nodes", "quarantine", "g07", "-o", "wide")
    assert code == 0
    assert [word in out for word in ("0f3c77", "Undecodable: torn", "/s/parts/0f3c77", "release")] == [True] * 4
    code, out, _ = yard("nodes", "quarantine", "g07", "discard", "0f3", "--reason", "disk lost")
    assert code == 0
    assert "0f3c77" not in out
    (asked,) = server.to("POST", "/nodes/g07/quarantine")
    assert asked.json == {"part": "0f3c77", "do": "discard", "reason": "disk lost"}
    for words in (["release", "0f"], ["release", "9"], ["burn", "0f3"], ["release"]):
        code, _, err = yard("nodes", "quarantine", "g07", *words)
        assert code != 0, words
        assert err
    assert yard("nodes", "g07", "g08")[0] != 0


def test_nodes_warns_of_stages_that_are_root(yard, server, said):
    node = {"name": "n1", "state": "READY", "pools": ["default"], "devices": [], "reason": "", "runs_as": "root"}
    server.on(
        "GET", "/nodes", said(200, {"results": [node, {**node, "name": "n2", "runs_as": "nobody"}], "next": None})
    )
    code, out, err = yard("nodes")
    assert code == 0, err
    first, second = out.splitlines()[1:3]
    assert "stages run as root" in first
    assert "stages run as root" not in second


def test_logout_takes_the_token_back_and_keeps_the_rest(yard, server, said, monkeypatch, as_problem):
    server.on("GET", "/whoami", said(200, {"user": "mia", "name": "", "staff": False, "projects": []}))
    yard("login", server.url, "--project", "vision")
    yard("login", server.url, "--profile", "lab")
    server.on("DELETE", "/tokens/current", said(204), as_problem(401, "not_authenticated", "revoked"))
    assert yard("logout")[0] == 0
    assert server.to("DELETE", "/tokens/current")[0].headers["authorization"] == "Bearer t"
    assert yard("logout")[0] == 2
    assert yard("logout", "--profile", "lab")[0] == 0, "who is refused already is signed out too"
    monkeypatch.delenv("YARD_TOKEN")
    assert find().token == ""
    assert find(profile="lab").token == ""
    yard("login", server.url, "--token", "u")
    assert yard("logout", "--forget")[0] == 0
    assert len(server.to("DELETE", "/tokens/current")) == 2
    server.on("DELETE", "/tokens/current", said(0))
    yard("login", server.url, "--token", "u")
    assert yard("logout")[0] == 6
    assert find().token == "u"


def test_a_code_is_asked_for_until_it_is_answered(server, said, as_problem, capsys, monkeypatch):
    grant = {"device_code": "s", "user_code": "BCDF-GHJK\x1b[2J", "verification_uri": "http://yard/device"}
    server.on("POST", "/device-codes", said(201, grant | {"expires_in": 600, "interval": -1}))
    waits = [as_problem(400, code, "x") for code in ("authorization_pending", "slow_down", "authorization_pending")]
    server.on("POST", "/device-codes/token", *waits, said(200, {"access_token": "yard_x"}))
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with Client(server.url) as client:
        assert by_code(client, ["read"], 7) == "yard_x"
        assert slept == [1.0, 1.0, 6.0, 6.0]
        assert "\x1b" not in capsys.readouterr().err
        asked = server.to("POST", "/device-codes")[0].json
        assert (asked["scopes"], asked["days"], asked["name"][:8]) == (["read"], 7, "yard on ")
        server.on("POST", "/device-codes/token", as_problem(400, "access_denied", "the code was refused"))
        with pytest.raises(ApiProblem, match="refused"):
            by_code(client, ["read"], 7)
        server.on("POST", "/device-codes", said(201, grant | {"expires_in": 0, "interval": 5}))
        with pytest.raises(WaitTimeout):
            by_code(client, ["read"], 7)


def test_a_change_is_a_merge_patch_of_the_job_file(yard, server, said, as_job):
    server.on("PATCH", "/jobs/7", said(200, as_job(7, "PENDING")))
    code, out, _ = yard(
        "change", "7", "--stage", "train", "--time", "6h", "--begin", "", "--priority", "900", "--label", "a=b",
        "--label", "c=", "--reason", "why", "--set", "stages.train.nodes=2", "--set", "devices.model=null",
    )  # fmt: skip
    assert (code, out) == (0, "job 7 PENDING\n")
    (asked,) = server.to("PATCH", "/jobs/7")
    assert asked.json == {
        "priority": 900,
        "labels": {"a": "b", "c": None},
        "stages": {"train": {"time_limit": "6h", "begin": None, "nodes": 2}},
        "devices": {"model": None},
    }
    assert yard("change", "7")[0] == 2


def test_a_filter_acts_on_all_that_match_and_tells_each(yard, server, said):
    results = [
        {"number": 1, "outcome": "done", "state": "HELD", "code": "", "detail": ""},
        {"number": 2, "outcome": "refused", "state": "RUNNING", "code": "illegal_transition", "detail": "it runs"},
    ]
    answer = {"action": "hold", "dry_run": True, "done": 1, "refused": 1, "left": 0, "more": False, "results": results}
    server.on("POST", "/jobs/bulk", said(200, answer))
    code, out, err = yard("hold", "--filter", "state=PENDING", "--filter", "label=sweep=7", "--dry-run")
    assert (code, out) == (5, "job 1 HELD (dry run)\n")
    assert err == "error: job 2: it runs (illegal_transition)\n"
    sent = {"action": "hold", "reason": "", "dry_run": True, "filter": {"state": "PENDING", "label": "sweep=7"}}
    assert server.to("POST", "/jobs/bulk")[0].json == sent
    for wrong in (["hold"], ["hold", "1", "--filter", "q=x"], ["hold", "--filter", "x"], ["hold", "a-b", "--dry-run"]):
        assert yard(*wrong)[0] == 2, wrong


def test_more_jobs_than_one_answer_holds_are_an_operation_that_is_followed(yard, server, said, monkeypatch):
    monkeypatch.setattr("switchyard.client.LONGEST_POLL_S", 0.01)
    row = {
        "id": 7, "user": "ann", "action": "hold", "filter": {"q": "sweep"}, "phase": "WAITING", "matched": 1200,
        "done": 0, "refused": 0, "refusals": [], "fault": "", "ended_at": None,
    }  # fmt: skip
    refusal = {"number": 9, "code": "illegal_transition", "detail": "it runs"}
    ended = {**row, "phase": "DONE", "done": 1199, "refused": 1, "refusals": [refusal], "ended_at": "2027-01-28T02:00Z"}
    server.on("POST", "/jobs/bulk", said(202, row))
    server.on("GET", "/operations/7", said(200, row), said(200, ended))
    code, out, err = yard("hold", "--filter", "q=sweep")
    assert (code, out) == (5, "operation 7 DONE: 1,199 done, 1 refused\n")
    assert "1,200 jobs match" in err
    assert "job 9: it runs (illegal_transition)" in err
    server.on("GET", "/operations", said(200, {"results": [ended], "next": None}))
    assert yard("operation")[1].splitlines()[1].split("\t")[:5] == ["7", "hold", "q=sweep", "DONE", "1200"]
    server.on("POST", "/operations/7/cancel", said(200, {**row, "phase": "CANCELLED", "done": 3}))
    assert yard("operation", "cancel", "7")[:2] == (0, "operation 7 CANCELLED: 3 done, 0 refused\n")
    server.on("GET", "/operations/7", said(200, {**ended, "phase": "FAILED", "fault": "user ann is deactivated"}))
    assert yard("operation", "wait", "7")[0] == 1
    assert yard("operation", "show")[0] == 2


def test_a_quota_is_set_where_it_is_and_added_where_it_is_not(yard, server, said):
    row = {
        "number": 3, "project": "vision", "kind": "gpu", "model": "H100", "normalised": False, "cohort": "",
        "nominal": 8.0, "borrowing_limit": None, "lending_limit": None, "held": 2.0,
        "borrowed": 0.0, "lent": 1.5,
    }  # fmt: skip
    server.on("GET", "/quotas", said(200, {"results": [row]}))
    server.on("PATCH", "/quotas/3", said(200, {**row, "nominal": None}))
    server.on("POST", "/quotas", said(201, {**row, "kind": "npu", "model": ""}))
    code, out, _ = yard("quota", "set", "vision", "gpu", "--model", "h100", "--nominal", "none", "--borrowing", "4")
    assert (code, "unlimited" in out) == (0, True)
    (asked,) = server.to("PATCH", "/quotas/3")
    assert asked.json == {"nominal": None, "borrowing_limit": 4.0}
    assert yard("quota", "set", "vision", "npu", "--nominal", "2")[0] == 0
    assert server.to("POST", "/quotas")[0].json == {
        "project": "vision", "kind": "npu", "model": "", "normalised": False, "nominal": 2.0,
    }  # fmt: skip
    assert yard("quota", "list")[1].splitlines()[1].split("\t")[:7] == ["vision", "gpu", "H100", "8", "2", "0", "1.5"]
    assert yard("quota", "set", "vision")[0] == 2
    assert yard("quota", "delete", "vision", "cpu")[0] == 3


def test_a_budget_is_set_where_it_is_and_added_where_it_is_not(yard, server, said):
    row = {
        "number": 3, "project": "vision", "kind": "gpu", "normalised": False, "period": "month",
        "first_day": "2026-11-01", "last_day": "2026-11-30", "until_at": "2026-12-01T00:00:00Z", "hours": 500.0,
        "at_end": "hold", "used_hours": 431.25, "hours_per_day": 20.0, "forecast_hours": 584.1, "is_used_up": False,
        "ends_at": None,
    }  # fmt: skip
    server.on("GET", "/budgets", said(200, {"results": [row]}))
    server.on("PATCH", "/budgets/3", said(200, {"project": "vision", "hours": 800.0}))
    server.on("POST", "/budgets", said(201, {**row, "number": 4}))
    server.on("DELETE", "/budgets/3", said(204))
    assert yard("budget")[1].splitlines()[1].split("\t")[:9] == [
        "3", "vision", "gpu", "month", "500", "431.2", "584.1", "lasts", "hold",
    ]  # fmt: skip
    assert yard("budget", "set", "vision", "--kind", "gpu", "--hours", "800")[1].startswith(
        "budget 3 of project vision"
    )
    assert server.to("PATCH", "/budgets/3")[0].json == {"hours": 800.0}
    once = ("--from", "2027-01-01", "--to", "2027-06-30", "--normalised")
    assert yard("budget", "set", "vision", *once, "--hours", "9", "--at-end", "stop")[0] == 0
    assert server.to("POST", "/budgets")[0].json == {
        "project": "vision", "kind": "", "normalised": True, "period": "dates", "first_day": "2027-01-01",
        "last_day": "2027-06-30", "hours": 9.0, "at_end": "stop",
    }  # fmt: skip
    assert yard("budget", "delete", "vision", "--kind", "gpu")[:2] == (0, "budget 3 of project vision is deleted\n")
    assert yard("budget", "delete", "vision", "--kind", "npu")[0] == 3
    for wrong in (["set"], ["set", "vision"], ["set", "vision", "--hours", "1", "--from", "2027-01-01"]):
        assert yard("budget", *wrong)[0] == 2, wrong


def test_a_limit_is_set_where_it_is_and_added_where_it_is_not(yard, server, said):
    row = {
        "number": 3, "user": "ann", "project": None, "pool": "default", "running": 4, "waiting": None, "devices": 2.0,
        "whose": "ann", "running_now": 1, "waiting_now": 0, "devices_now": 0.5,
    }  # fmt: skip
    server.on("GET", "/limits", said(200, {"results": [row]}))
    server.on("PATCH", "/limits/3", said(200, {"user": "ann", "project": None, "pool": "default", "running": 6,
                                               "waiting": None, "devices": 2.0}))  # fmt: skip
    server.on("POST", "/limits", said(201, {**row, "number": 4, "user": None}))
    server.on("DELETE", "/limits/3", said(204))
    assert yard("limit")[1].splitlines()[1].split("\t")[:7] == [
        "3", "ann", "-", "default", "1 of 4", "0 of unlimited", "0.5 of 2",
    ]  # fmt: skip
    ann = ("--user", "ann", "--pool", "default")
    assert yard("limit", "set", *ann, "--running", "6", "--waiting", "none")[1].startswith("limit 3: user ann")
    assert server.to("PATCH", "/limits/3")[0].json == {"running": 6, "waiting": None}
    assert yard("limit", "set", "--devices", "1.5")[0] == 0
    assert server.to("POST", "/limits")[0].json == {"user": None, "project": None, "pool": None, "devices": 1.5}
    assert yard("limit", "unset", *ann)[:2] == (0, "limit 3 is unset\n")
    assert yard("limit", "unset", "--user", "bob")[0] == 3
    assert yard("limit", "set", "--user", "ann")[0] == 2


def test_without_an_action_they_list_and_one_is_shown_by_its_name(yard, server, said):
    pool = {
        "name": "default", "decides": "hybrid", "nodes": 2, "default_limit_s": 3600, "max_limit_s": 86400,
        "usable": True, "stopped_by": "",
    }  # fmt: skip
    project = {
        "name": "vision", "weight": 2.0, "description": "images", "role": "lead", "lost_device_s": 60.0,
        "members": [{"user": "ann", "role": "lead"}],
    }  # fmt: skip
    for path, row in (("/quotas", None), ("/tokens", None), ("/pools", pool), ("/projects", project)):
        server.on("GET", path, said(200, {"results": [row] if row else [], "next": None, "previous": None}))
    for verb in ("quota", "token", "pool", "project"):
        assert yard(verb)[0] == 0, verb
    assert yard("project", "show", "vision")[1].startswith("project vision: images\n  weight   2\n")
    assert yard("pool", "show", "default")[1].startswith("pool default\n  profile        hybrid\n")
    assert (yard("project", "show", "nobody")[0], yard("pool", "show", "nowhere")[0]) == (3, 3)


def test_people_get_roles_in_projects(yard, server, said):
    server.on("PUT", "/projects/vision/members/ann", said(201, {"user": "ann", "role": "member"}))
    server.on("DELETE", "/projects/vision/members/ann", said(204))
    assert yard("project", "member", "vision", "ann", "--role", "member")[1] == "ann has the role member in vision\n"
    assert yard("project", "member", "vision", "ann", "--role", "none")[1] == "ann has no role in vision\n"
    for wrong in (["member", "vision"], ["add"], ["change", "vision"], ["member", "vision", "ann", "--role", "king"]):
        assert yard("project", *wrong)[0] == 2, wrong


def test_a_signal_goes_to_running_stages(yard, server, said):
    server.on("POST", "/jobs/7/signal", said(200, {"number": 7, "signal": "SIGUSR1", "processes": 2}))
    assert yard("signal", "7", "usr1", "--stage", "fit")[1] == "SIGUSR1 goes to 2 processes of job 7\n"
    assert server.to("POST", "/jobs/7/signal")[0].json == {"signal": "SIGUSR1", "stage": "fit", "reason": ""}


def test_a_token_is_made_for_a_pipe_listed_and_revoked_by_its_name(yard, server, said):
    made = {
        "id": "0199aaaa-0000-7000-8000-000000000000", "name": "nightly", "scopes": ["read"],
        "created_at": "2026-11-21T03:00:00Z", "expires_at": "2026-12-21T03:00:00Z", "last_used_at": None,
        "is_current": False,
    }  # fmt: skip
    server.on("POST", "/tokens", said(201, {**made, "secret": "yard_pat_x"}))
    server.on("GET", "/tokens", said(200, {"results": [made, {**made, "id": "0199bbbb-0", "name": "two"}]}))
    server.on("DELETE", f"/tokens/{made['id']}", said(204))
    code, out, err = yard("token", "create", "nightly", "--scope", "read", "--days", "30")
    assert (code, out, "yard_pat_x" in err) == (0, "yard_pat_x\n", False)
    assert server.asked[-1].json == {"name": "nightly", "scopes": ["read"], "days": 30}
    assert yard("token", "list", "-o", "name")[1] == "nightly\ntwo\n"
    assert yard("token", "revoke", "nightly")[0] == 0
    assert yard("token", "revoke", "0199aaaa")[0] == 0
    assert len(server.to("DELETE", f"/tokens/{made['id']}")) == 2
    for name in ("0199", "three"):
        code, _, err = yard("token", "revoke", name)
        assert (code, "-o wide" in err) == (3, True)


def test_search_prints_what_the_server_found(yard, server, said):
    found = {"kind": "node", "name": "g07", "detail": "train", "state": "READY", "path": "/nodes/g07"}
    server.on("GET", "/search", said(200, {"results": [found]}))
    code, out, _ = yard("search", "g07", "gpu3", "--limit", "2")
    assert code == 0
    assert server.asked[-1].query == {"q": "g07 gpu3", "limit": "2"}
    assert out.splitlines()[1].split() == ["node", "g07", "READY", "train"]
    assert yard("search", "g07", "-o", "name")[1] == "/nodes/g07\n"
