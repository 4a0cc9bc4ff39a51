"""Job files and command lines become the same object that the REST interface takes."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest

from switchyard import jobfile
from switchyard.cli import demand
from switchyard.cli.main import parser_of
from switchyard.problem import SpecError


def spec(*words: str) -> dict:
    """What ``yard submit`` makes of these words."""
    given = list(words)
    command = given[given.index("--") + 1 :] if "--" in given else []
    args: argparse.Namespace = parser_of("submit").parse_args(given[: given.index("--")] if "--" in given else given)
    args.command = command
    return demand.spec_of(args)


def test_yaml_means_what_it_says():
    read = jobfile.parse(
        "retry: {max: 3, on: [node_fail]}\ntime_limit: 12:00:00\nbegin: 2027-01-31\n"
        "lr: 1e-4\nzip: 0123\nhold: false\nname: no\n"
    )
    assert read == {
        "retry": {"max": 3, "on": ["node_fail"]},
        "time_limit": "12:00:00",
        "begin": "2027-01-31",
        "lr": 1e-4,
        "zip": "0123",
        "hold": False,
        "name": "no",
    }


def test_json_is_read_as_well():
    assert jobfile.parse('{"name": "a", "stages": [{"name": "b", "cpus": 2.5}]}') == {
        "name": "a",
        "stages": [{"name": "b", "cpus": 2.5}],
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: 1\na: 2", "twice"),
        ("- a", "mapping"),
        ("a: [1", "line 1"),
        ("a: !!python/object/apply:os.system [x]", "line 1"),
        ("a: &x [1]\nb: *x", "anchors"),
        ("? [a]\n: 1", "key"),
        ("", "mapping"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(text, word):
    with pytest.raises(SpecError, match=word):
        jobfile.parse(text)


def test_a_workdir_is_taken_from_the_folder_of_its_file(tmp_path, monkeypatch):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "a.yaml").write_text("run: ./x\nworkdir: ../code\n")
    assert Path(jobfile.read(str(tmp_path / "jobs" / "a.yaml"))["workdir"]).resolve() == tmp_path / "code"
    monkeypatch.setattr("sys.stdin", io.StringIO("run: x\nworkdir: .\n"))
    assert jobfile.read("-")["workdir"] == str(Path.cwd())


def test_set_reaches_every_place_of_a_file():
    given = {
        "stages": [{"name": "train"}, {"name": "test", "env": {"A": 1}}],
        "devices": {"any_of": [{"kind": "gpu"}]},
        "hold": True,
    }
    jobfile.put(
        given,
        [
            "stages.train.time_limit=1h",
            "stages.1.env.A=2",
            "devices.any_of.0.count=4",
            "retry.on=[signal]",
            "hold=null",
            "name=a=b",
        ],
    )
    assert given == {
        "stages": [{"name": "train", "time_limit": "1h"}, {"name": "test", "env": {"A": 2}}],
        "devices": {"any_of": [{"kind": "gpu", "count": 4}]},
        "retry": {"on": ["signal"]},
        "name": "a=b",
    }


@pytest.mark.parametrize("text", ["stages.nope.cpus=1", "name.x=1", "novalue", "=1"])
def test_set_refuses_a_path_that_leads_nowhere(text):
    with pytest.raises(SpecError, match="--set"):
        jobfile.put({"stages": [{"name": "train"}], "name": "a"}, [text])


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("gpu", {"kind": "gpu"}),
        ("gpu:2", {"kind": "gpu", "count": 2}),
        ("H100:8", {"model": "H100", "count": 8}),
        ("a100", {"model": "a100"}),
        ("npu:0.5", {"kind": "npu", "milli": 500}),
        (
            "kind=npu,vendor=huawei,milli=250,memory=16GiB",
            {"kind": "npu", "vendor": "huawei", "milli": 250, "memory": "16GiB"},
        ),
        ("H100,partition=1g.10gb", {"model": "H100", "partition": "1g.10gb"}),
        ("partition=3g.40gb", {"partition": "3g.40gb"}),
        ("H100:8,memory=40GiB", {"model": "H100", "count": 8, "memory": "40GiB"}),
        ("model=NVIDIA H100 80GB HBM3,count=2", {"model": "NVIDIA H100 80GB HBM3", "count": 2}),
    ],
)
def test_the_short_form_of_devices(text, ask):
    assert demand.devices(text) == ask


@pytest.mark.parametrize("text", ["", "gpu:0", "gpu:1.5", "gpu,what=1", "gpu,2", "count=x", "kind="])
def test_devices_that_cannot_be_read_are_refused(text):
    with pytest.raises(SpecError, match="--devices"):
        demand.devices(text)


def test_a_command_line_becomes_a_job():
    made = spec(
        "--name", "sft", "--devices", "H100:8", "--devices", "npu:8", "--nodes", "2", "--cpus", "1.5",
        "--memory", "8GiB", "--time", "12h",
        "--priority", "high", "--env", "A=b=c", "--label", "team=x", "--set", "retry.max=3", "--hold",
        "--", "python", "train.py", "--lr", "3e-4", "--", "x",
    )  # fmt: skip
    assert made == {
        "apiVersion": "v1",
        "kind": "Job",
        "name": "sft",
        "command": ["python", "train.py", "--lr", "3e-4", "--", "x"],
        "devices": {"any_of": [{"model": "H100", "count": 8}, {"kind": "npu", "count": 8}]},
        "nodes": 2,
        "cpus": 1.5,
        "memory": "8GiB",
        "time_limit": "12h",
        "priority": "high",
        "env": {"A": "b=c"},
        "labels": {"team": "x"},
        "retry": {"max": 3},
        "hold": True,
    }


def test_nodes_may_be_a_range():
    assert spec("--nodes", "1-4", "--", "x")["nodes"] == {"min": 1, "max": 4}
    for text in ("-", "1-", "a-b", "1.5"):
        with pytest.raises(SystemExit):
            spec(f"--nodes={text}", "--", "x")


def test_options_change_a_job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: a\nrun: x\nenv: {A: 1, B: 2}\nworkdir: .\n")
    made = spec(str(path), "--name", "b", "--env", "B=3", "--priority", "-5", "--no-workdir")
    assert made == {"name": "b", "run": "x", "env": {"A": 1, "B": "3"}, "priority": -5}


def test_a_kind_makes_one_stage_of_that_kind(tmp_path):
    assert spec("--kind", "infer", "--", "x")["stages"] == [{"name": "infer", "kind": "infer"}]
    path = tmp_path / "job.yaml"
    path.write_text("stages: [{name: a, run: x}]\n")
    with pytest.raises(SpecError, match="kind"):
        spec(str(path), "--kind", "train")


def test_an_environment_variable_can_be_copied(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/cache")
    assert spec("--env", "HF_HOME", "--", "x")["env"] == {"HF_HOME": "/cache"}
    with pytest.raises(SpecError, match="not set"):
        spec("--env", "NOT_SET_HERE", "--", "x")


@pytest.mark.parametrize("words", [(), ("job.yaml", "--", "x")])
def test_either_a_file_or_a_command(words):
    with pytest.raises(SpecError, match="either"):
        spec(*words)


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (["python", "train.py"], True),
        (["python", "-m", "pkg"], True),
        (["python", "-m", "pkg.train"], True),
        (["python", "x.py", "--config=pkg/train.py"], True),
        (["nvidia-smi"], False),
        (["echo", "."], False),
        (["cat", "/etc/hostname"], False),
        (["ls", "../here"], False),
    ],
)
def test_a_folder_is_sent_along_when_the_command_speaks_of_it(no_config, command, sent, capsys):
    (no_config / "train.py").write_text("")
    (no_config / "pkg").mkdir()
    (no_config / "pkg" / "train.py").write_text("")
    made = spec("--", *command)
    assert made.get("workdir") == ("." if sent else None)
    assert ("sends this folder" in capsys.readouterr().err) == sent
    assert "workdir" not in spec("--no-workdir", "--", *command)


def test_the_name_of_a_command_is_its_script():
    assert spec("--", "python", "/opt/my train.py")["name"] == "my-train.py"
    assert spec("--", "/bin/echo", "hi")["name"] == "echo"


def test_flags_say_where_it_must_not_run(yard, server, as_job, said) -> None:
    server.on("POST", "/jobs", said(201, as_job(12)))
    code, *_ = yard(
        "submit", "--avoid", "gpu-03", "--avoid", "rack=r2", "--site", "berlin", "--only-on", "gpu-04", "--only-on",
        "rack=r3", "--constraint", "ib&(a100|h100)", "--no-workdir", "--", "true"
    )  # fmt: skip
    assert code == 0
    (sent,) = server.to("POST", "/jobs")
    assert sent.json["avoid"] == ["gpu-03", {"rack": "r2"}]
    assert sent.json["site"] == "berlin"
    assert sent.json["only_on"] == ["gpu-04", {"rack": "r3"}]
    assert sent.json["constraint"] == "ib&(a100|h100)"
