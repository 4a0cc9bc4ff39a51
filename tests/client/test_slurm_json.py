"""``--json``, steps and placement as the real Slurm 24.11 answered in the same situations (see record.py)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from switchyard.slurm.commands import as_json
from switchyard.slurm.commands.records import SlurmJob

REAL = json.loads((Path(__file__).parent / "slurm_fixtures" / "slurm_json.json").read_text())
NUMBER = REAL["jobs"]
ENDED = ",".join(str(NUMBER[name]) for name in ("steps", "failed", "killed", "plain", "stopped"))
# What scripts read most often (`jq`, pyslurm's successors, dashboards).
MOST_READ = (
    "job_id", "job_state", "name", "user_name", "account", "partition", "nodes", "time_limit", "start_time", "end_time",
    "submit_time", "node_count", "cpus", "tasks", "qos", "priority", "state_reason", "dependency", "exit_code",
    "array_job_id", "array_task_id", "tres_req_str", "tres_alloc_str", "required_nodes", "features", "comment",
)  # fmt: skip


MEMORY: dict[int, int] = {}


def answered(*words: str) -> dict[str, Any]:
    """What the real one answered to a command line that begins so."""
    exact = [one for one in REAL["answers"] if one["words"] == list(words)]
    return (exact or [one for one in REAL["answers"] if one["words"][: len(words)] == list(words)])[0]


def situation(as_job, name: str, state: str, **more):
    now = datetime.now(UTC)
    job = as_job(NUMBER[name], state, name=name, pool="main", submitted_at=(now - timedelta(seconds=5)).isoformat())
    asks = [{"code": "SomeCores", "params": {"cores": str(more.pop("cpus", 1))}}]
    MEMORY[NUMBER[name]] = more.pop("memory_mib", 100) << 20
    begun = state != "PENDING"
    job["priority"] = {"class": "normal", "value": 100}
    job["started_at"] = (now - timedelta(seconds=2)).isoformat() if begun else None
    job["ended_at"] = now.isoformat() if state in ("COMPLETED", "FAILED", "CANCELLED") else None
    job["array"] = more.pop("array", None)
    job["project"], job["user"] = "vision", "mia"
    job["stages"][0] |= {
        "device_kind": "cpu", "nodes": 1, "time_limit_s": 3600, "asks_said": asks, "attempts": 1, "detail_said": [],
        "begin_at": None, "started_at": job["started_at"], "ended_at": job["ended_at"], **more,
        "placed": [{"node": "node1", "rank": 0, "devices": []}] if begun else [],
    }  # fmt: skip
    return job


@pytest.fixture
def cluster(server, said, as_job):
    full = {"code": "CapacityInsufficient", "text": "full", "acts": "nobody"}
    behind = {"code": "PriorityBehind", "text": "behind", "acts": "nobody"}
    killed = [{"code": "Signal", "params": {"signal": "SIGKILL"}}]
    jobs = [
        situation(as_job, "steps", "COMPLETED", cpus=2, memory_mib=200, time_limit_s=300, exit_code=0),
        situation(as_job, "failed", "FAILED", cause="EXIT_CODE", exit_code=3),
        situation(as_job, "killed", "FAILED", cause="SIGNAL", detail_said=killed),
        situation(as_job, "plain", "COMPLETED", exit_code=0),
        situation(as_job, "stopped", "CANCELLED", cause="CANCELLED", exit_code=-15),
        situation(as_job, "running", "RUNNING", cpus=8, memory_mib=1000, time_limit_s=1800),
        situation(as_job, "pending", "PENDING", cpus=4, memory_mib=400, time_limit_s=600, reason=full),
        situation(as_job, "array", "PENDING", reason=behind, array={"number": NUMBER["array"], "index": 1}),
    ]

    def listed(asked):
        wanted = set(asked.query.get("state", "").split(",")) - {""}
        if asked.query.get("array"):
            return said(200, {"results": [], "next": None})
        ended = {"COMPLETED", "FAILED", "CANCELLED"}
        found = [
            job for job in jobs
            if not wanted or job["state"] in wanted or ("ACTIVE" in wanted and job["state"] not in ended)
        ]  # fmt: skip
        return said(200, {"results": found, "next": None})

    server.on("GET", "/jobs", listed)
    for job in jobs:
        job["stages"][0]["memory_bytes"] = MEMORY[job["number"]]
        if job["name"] == "running":
            job["stages"][0] |= {"only_on": ["node1"], "constraint": "ib&a100"}
        server.on("GET", f"/jobs/{job['number']}", said(200, job))
    core = {"kind": "cpu", "capacity_milli": 8000, "claimed_milli": 8000, "claimed_memory_bytes": 1000 << 20}
    node = {"name": "node1", "state": "READY", "pools": ["main"], "memory_bytes": 8000 << 20, "devices": [core]}
    node["labels"] = {"ib": "yes", "gen": "a100"}
    server.on("GET", "/nodes", said(200, {"results": [node], "next": None}))
    server.on("GET", "/whoami", said(200, {"user": "mia"}))
    pool = {"name": "main", "max_limit_s": 86400, "default_limit_s": 3600}
    server.on("GET", "/pools", said(200, {"results": [pool]}))
    return server


def shape(found: Any, path: str = "") -> dict[str, str]:
    """Return the kind of value at each path; items of a list share one."""
    if isinstance(found, dict):
        inside = [shape(value, f"{path}.{key}") for key, value in found.items()]
    elif isinstance(found, list):
        inside = [shape(value, f"{path}[]") for value in found]
    else:
        kind = {"int": "number", "float": "number", "NoneType": "null"}.get(type(found).__name__, type(found).__name__)
        return {path: kind}
    merged = {path: type(found).__name__}
    for one in inside:
        merged.update(one)
    return merged


JSON = [one["words"] for one in REAL["answers"] if "--json" in one["words"] and one["code"] == 0]
# What is empty here: flags, billing and energy as resources, sockets, addresses.
DEEPER = ("flags[]", "sockets[]", ".tres.requested.", ".tres.consumed.")


@pytest.mark.parametrize("words", JSON, ids=" ".join)
def test_the_json_has_slurms_keys_and_types_and_no_other(cluster, yard, words):
    real = json.loads(answered(*words)["out"])
    code, out, err = yard("slurm", *words)
    assert (code, err) == (0, "")
    ours, theirs = shape(json.loads(out)), shape(real)
    assert {path: kind for path, kind in ours.items() if theirs.get(path, "absent") != kind} == {}
    assert {path for path in theirs if path not in ours and not any(part in path for part in DEEPER)} == set()


@pytest.mark.parametrize("name", ["running", "pending", "steps", "failed", "stopped"])
def test_what_scripts_read_most_has_slurms_values(cluster, yard, name):
    words = ["squeue", "--json", "-t", "all", "-j", str(NUMBER[name])]
    (theirs,), (ours,) = (json.loads(text)["jobs"] for text in (answered(*words)["out"], yard("slurm", *words)[1]))

    def plain(job: dict[str, Any]) -> dict[str, Any]:
        found = {key: job[key] for key in MOST_READ if not key.endswith("_time")}
        found["tres_req_str"] = set(job["tres_req_str"].split(","))
        found["tres_alloc_str"] = set(job["tres_alloc_str"].split(","))
        # Priorities are numbers of another scale; tasks are known to the batch script alone.
        return {key: value for key, value in found.items() if key not in ("priority", "tasks")}

    assert plain(ours) == plain(theirs)
    assert ours["start_time"]["number"] > 1e9 or name == "pending"


@pytest.mark.parametrize(
    "words",
    [
        ["squeue", "--json", "-t", "all"], ["squeue", "-t", "all", "-o", "%i %f %x %n %m %v"],
        ["sacct", "--json", "-a"],
        ["sacct", "-a", "-S", "2020-01-01", "-o", "JobID,AllocTRES,ReqTRES,ReqMem,Constraints"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_list_asks_no_more_for_more_rows(cluster, yard, words):
    assert yard("slurm", *words)[0] == 0
    assert [asked.path for asked in cluster.asked if asked.path != "/api/v1/whoami"] == ["/api/v1/jobs"]


@pytest.mark.parametrize("name", ["running", "steps", "failed", "stopped"])
def test_memory_of_a_node_is_what_the_stage_asks_and_none_of_it_is_used_after_the_end(cluster, yard, name):
    words = ["squeue", "--json", "-t", "all", "-j", str(NUMBER[name])]
    (theirs,), (ours,) = (json.loads(text)["jobs"] for text in (answered(*words)["out"], yard("slurm", *words)[1]))
    real, own = (job["job_resources"]["nodes"]["allocation"] for job in (theirs, ours))
    assert [one["memory"] for one in own] == [one["memory"] for one in real]
    if name != "running":  # of these Slurm counts what the steps use now, and here the only step is all of it
        assert [one["cpus"] for one in own] == [one["cpus"] for one in real]


def test_the_json_of_a_list_has_memory_reservation_and_deadline(cluster, yard, said, as_job):
    job = situation(as_job, "running", "RUNNING", memory_mib=1000)
    job["stages"][0] |= {"memory_bytes": 1000 << 20, "reservation": "demo", "deadline_at": "2027-01-31T18:00:00Z"}
    bare = situation(as_job, "pending", "PENDING")
    cluster.on("GET", "/jobs", said(200, {"results": [job, bare], "next": None}))
    found = {one["job_id"]: one for one in json.loads(yard("slurm", "squeue", "--json")[1])["jobs"]}
    one, other = found[NUMBER["running"]], found[NUMBER["pending"]]
    assert (one["resv_name"], one["deadline"]["number"]) == ("demo", 1801418400)
    assert one["memory_per_node"] == {"set": True, "infinite": False, "number": 1000}
    assert other["memory_per_node"]["set"] is False
    told = {one["job_id"]: one for one in json.loads(yard("slurm", "sacct", "--json", "-a")[1])["jobs"]}
    kinds = [
        [each["type"] for each in told[number]["tres"]["requested"]]
        for number in (NUMBER["running"], NUMBER["pending"])
    ]
    assert kinds == [["cpu", "mem", "node", "billing"], ["cpu", "node", "billing"]]


def test_steps_of_elements_are_named_by_array_element_and_job(cluster, yard, said, as_job):
    job = situation(as_job, "running", "RUNNING", array={"number": 40, "index": 2})
    cluster.on("GET", f"/jobs/{NUMBER['running']}", said(200, job))
    cluster.on("GET", "/jobs/40_2", said(200, job))
    cluster.on("GET", "/jobs", said(200, {"results": [job], "next": None}))
    for name in ("40_2.batch", "40.batch", f"{NUMBER['running']}.batch"):
        assert yard("slurm", "sacct", "-n", "-P", "-o", "JobID", "-j", name)[1] == "40_2.batch\n", name
    assert yard("slurm", "sacct", "-n", "-P", "-o", "JobID", "-j", "40_2,40.none")[1] == "40_2\n40_2.batch\n"


def test_jobs_that_are_named_are_sought_from_the_beginning(cluster, yard):
    number = str(NUMBER["steps"])
    for words, lines in ((["-E", "2030-01-01"], 1), (["-E", "2001-01-01"], 0), (["-S", "2030-01-01", "-E", "now"], -1)):
        code, out, _ = yard("slurm", "sacct", "-X", "-n", "-j", number, *words)
        assert (code, out.count("\n")) == ((0, lines) if lines >= 0 else (1, 0)), words


def test_no_list_of_a_job_that_is_not_there(cluster, yard):
    assert yard("slurm", "squeue", "--json", "-j", "999999")[0] == 1


def test_a_limit_that_is_none_is_infinite(cluster, yard, said, as_job):
    job = situation(as_job, "running", "RUNNING", time_limit_s=None)
    cluster.on("GET", f"/jobs/{NUMBER['running']}", said(200, job))
    (found,) = json.loads(yard("slurm", "squeue", "--json", "-j", str(NUMBER["running"]))[1])["jobs"]
    assert found["time_limit"] == {"set": False, "infinite": True, "number": 0}


def without_srun(text: str) -> str:
    """Take out the steps of ``srun``, which have no rows here, and by whom a job was cancelled."""
    lines = [line for line in text.splitlines() if not re.match(r"[0-9]+\.[0-9]", line)]
    return "\n".join(
        line.replace("CANCELLED by 1000", "CANCELLED").replace("CANCELLED+", " CANCELLED") for line in lines
    )


STEPS = [
    one["words"]
    for one in REAL["answers"]
    if one["words"][0] == "sacct" and "--json" not in one["words"]
    and not {"-e", "2037-01-01"} & set(one["words"]) and "MaxRSS" not in " ".join(one["words"])
]  # fmt: skip


@pytest.mark.parametrize("words", STEPS, ids=" ".join)
def test_sacct_shows_steps_as_slurm_does(cluster, yard, words):
    real = answered(*words)
    code, out, err = yard("slurm", *words)
    expected = without_srun(real["out"])
    if f"{NUMBER['stopped']}.batch" in expected or words[-1] == ENDED:
        # Of a job that was cancelled its own code is that of its stage.
        expected = re.sub(
            rf"^({NUMBER['stopped']} .*|{NUMBER['stopped']}\|.*)\b0:0\b", r"\g<1>0:15", expected, flags=re.MULTILINE
        )
        expected = expected.replace("    0:15 \n5.batch", "   0:15 \n5.batch")
    assert without_srun(out) == expected
    assert (code, err.strip()) == (real["code"], real["err"].strip())


def test_sacct_says_what_is_no_span_and_names_its_fields(cluster, yard):
    code, _, err = yard("slurm", "sacct", "-S", "2037-01-01")
    real = answered("sacct", "-P", "-n", "-o", "JobID", "-S", "2037-01-01")
    times = r"\(....-..-..T..:..:..\)"
    assert (code, re.sub(times, "T", err.strip())) == (real["code"], re.sub(times, "T", real["err"].strip()))
    theirs = answered("sacct", "-e")["out"].split()
    ours = yard("slurm", "sacct", "-e")[1].split()
    assert set(ours) - set(theirs) == {"Reserved"}  # what it was called in 22.05
    assert [name for name in theirs if name in ours] == [name for name in ours if name != "Reserved"]


def test_a_job_of_several_stages_has_them_as_steps(cluster, yard, said, as_job):
    job = situation(as_job, "running", "RUNNING")
    first = job["stages"][0] | {"name": "prepare", "state": "COMPLETED", "exit_code": 0}
    later = job["stages"][0] | {"name": "test", "state": "PENDING", "placed": [], "started_at": None}
    job["stages"] = [first, job["stages"][0] | {"name": "train"}, later]
    cluster.on("GET", f"/jobs/{NUMBER['running']}", said(200, job))
    number = NUMBER["running"]
    out = yard("slurm", "sacct", "-P", "-n", "-o", "JobID,JobName,State", "-j", str(number))[1]
    assert out == f"{number}|running|RUNNING\n{number}.0|prepare|COMPLETED\n{number}.1|train|RUNNING\n"


def test_squeue_lists_steps_that_run(cluster, yard):
    for words in (["squeue", "-s", "-h", "-o", "%i %j %u %N"], ["squeue", "-s"]):
        words = [*words, "-j", str(NUMBER["running"])]
        lines = [re.sub(r"0:0.", "0:0X", line) for line in answered(*words)["out"].splitlines() if "6.0" not in line]
        assert re.sub(r"0:0.", "0:0X", yard("slurm", *words)[1]).splitlines() == lines


def test_features_are_labels_with_their_values(cluster, yard):
    assert yard("slurm", "sinfo", "-h", "-o", "%N %f %b")[1] == "node1 gen=a100,ib=yes gen=a100,ib=yes\n"
    assert "   AvailableFeatures=gen=a100,ib=yes\n" in yard("slurm", "scontrol", "show", "node", "node1")[1]
    out = yard("slurm", "scontrol", "show", "job", str(NUMBER["running"]))[1]
    text = answered("scontrol", "show", "job", str(NUMBER["running"]))["out"]
    for field in ("ReqNodeList", "ExcNodeList", "Features"):
        said = re.search(rf"{field}=\S+", text)
        assert said
        assert said[0] in out
    words = ["squeue", "-h", "-o", "%i %f %n", "-j", str(NUMBER["running"])]
    assert (
        yard("slurm", *words)[1] == answered("squeue", "-h", "--sort=i", "-o", "%i %f %n")["out"].splitlines()[0] + "\n"
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-C", "nonsense"], {"pointer": "/stages/0/constraint", "code": "NodesRestricted"}),
        (["-w", "nonsense"], {"pointer": "/only_on/0", "code": "unknown_value"}),
        (["-x", "node1"], {"pointer": "/stages/0/avoid", "code": "NodesAvoided"}),
    ],
)
def test_sbatch_refuses_nodes_as_slurm_does_and_says_why(server, yard, as_problem, words, fault):
    errors = [{**fault, "detail": "the reason"}]
    server.on("POST", "/jobs", as_problem(422, "invalid_spec", "it is refused", errors=errors))
    code, out, err = yard("slurm", "sbatch", *words, "--wrap", "true")
    real = answered("sbatch", *words)
    assert (code, out) == (real["code"], real["out"])
    assert err.splitlines() == ["sbatch: error: the reason", real["err"].strip()]


def test_sbatch_calls_an_unknown_device_a_generic_resource(server, yard, as_problem):
    errors = [{"pointer": "/devices/0/kind", "code": "unknown_value", "detail": "no kind of device is called fpga"}]
    server.on("POST", "/jobs", as_problem(422, "invalid_spec", "it is refused", errors=errors))
    code, out, err = yard("slurm", "sbatch", "--gres=fpga:1", "--wrap", "true")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "sbatch: error: no kind of device is called fpga"
    assert err.splitlines()[1].endswith("failed: Invalid generic resource (gres) specification")


@pytest.mark.parametrize("code", ["NodesRestricted", "NodesAvoided", "DataResidency"])
def test_a_job_that_limits_its_nodes_waits_for_bad_constraints(as_job, code):
    job = as_job(7, "PENDING")
    job["stages"][0]["reason"] = {"code": code, "params": {}}
    assert SlurmJob(job).reason == "BadConstraints"
    job["stages"][0]["expected_start"] = {"low_at": "2027-01-01T00:00:00Z"}
    assert SlurmJob(job).reason == "Resources"


def test_accelerators_are_counted_on_all_nodes(as_job):
    job = as_job(7, "RUNNING")
    job["stages"][0] |= {
        "device_kind": "gpu", "nodes": 2, "placed": [{"node": "n1", "rank": 0}, {"node": "n2", "rank": 1}],
        "asks_said": [{"code": "Devices", "params": {"count": 4}}, {"code": "SomeCores", "params": {"cores": "3"}}],
    }  # fmt: skip
    one = SlurmJob(job)
    assert one.tres == "billing=6,cpu=6,gres/gpu=8,node=2"
    told = as_json.accounted(one)
    for key in ("allocated", "requested"):
        counts = {(each["type"], each["name"]): (each["id"], each["count"]) for each in told["tres"][key]}
        assert counts[("gres", "gpu")] == (1001, 8)
        assert counts[("billing", "")] == (5, 6)
    allocated = told["steps"][0]["tres"]["allocated"]
    assert next(each["count"] for each in allocated if each["type"] == "gres") == 8


@pytest.mark.parametrize(("state", "is_kept"), [("STARTING", False), ("RUNNING", True)])
def test_salloc_without_a_shell_keeps_only_what_it_was_granted(server, yard, said, as_job, monkeypatch, state, is_kept):
    """A job that shows as running may have a stage that is still being started when the user interrupts."""
    from switchyard.slurm.commands import salloc

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    job = as_job(7, "RUNNING")
    job["stages"][0]["state"] = state
    server.on("POST", "/jobs", said(201, job))
    server.on("POST", "/jobs/7/cancel", said(200, job))
    monkeypatch.setattr(salloc.time, "sleep", interrupted)
    code, _, err = yard("slurm", "salloc", "--no-shell", "-n1")
    assert ("Relinquishing" in err, code == 0) == (not is_kept, is_kept)
    assert bool(server.to("POST", "/jobs/7/cancel")) is not is_kept


def test_what_cannot_be_one_job_is_refused_before_it_is_sent(server, yard, no_config):
    (no_config / "het.sh").write_text("#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\ntrue\n")
    for words in (["-n1", ":", "-n2", "--wrap", "true"], ["het.sh"], ["-w", "node[1-999999999]", "--wrap", "true"]):
        code, out, err = yard("slurm", "sbatch", *words)
        assert (code, out) == (1, "")
        assert "start together are not known" in err or "is no list of numbers" in err
    assert not server.asked


def test_every_option_of_the_real_commands_is_known():
    from switchyard import step
    from switchyard.slurm import options

    about = {"help", "usage", "version"}
    assert set(REAL["options"]["sbatch"]) - about <= set(options.KNOWN)
    assert set(REAL["options"]["salloc"]) - about <= set(options.KNOWN)
    assert set(REAL["options"]["srun"]) - about <= step._LONG_VALUE | step._LONG_FLAG


def test_every_command_tells_a_version(yard):
    for name in ("sbatch", "squeue", "sinfo", "sacct", "scontrol", "srun", "salloc", "scancel"):
        code, out, _ = yard("slurm", name, "--version")
        assert code == 0
        assert re.match(REAL["version"].replace("-wlm", "").replace("24.11.5", r"24\.11\.[0-9]+"), out)


def test_components_of_a_step_are_refused_and_a_colon_for_the_shell_is_not(yard):
    from switchyard import step

    for words in (["-n1", "a", ":", "-n2", "b"], ["-n1", ":", "-n2", "b"], ["--het-group=1", "a"]):
        with pytest.raises(ValueError, match="call srun twice"):
            step.srun_options(words)
    assert step.srun_options(["sh", "-c", ":"])[1] == ["sh", "-c", ":"]
    assert yard("slurm", "salloc", "-n1", ":", "-n2")[0] == 1


def test_options_of_srun_whose_value_may_be_left_out_take_no_word_of_the_command():
    from switchyard import step

    for words, found in (
        (["-I60", "true"], {"immediate": "60"}), (["-I", "true"], {"immediate": ""}),
        (["--immediate=60", "true"], {"immediate": "60"}), (["-K0", "true"], {"kill-on-bad-exit": "0"}),
        (["--oom-kill-step", "true"], {"oom-kill-step": ""}), (["--oom-kill-step=1", "true"], {"oom-kill-step": "1"}),
        (["-IK", "true"], {"immediate": "", "kill-on-bad-exit": ""}),
    ):  # fmt: skip
        assert step.srun_options(words) == (found, ["true"])


@pytest.mark.parametrize("words", [["-I1"], ["--immediate=1"]])
def test_salloc_gives_up_what_does_not_fit_at_once(server, yard, said, as_job, words):
    server.on("POST", "/jobs", said(201, as_job(12)))
    server.on("GET", "/jobs/12", said(200, as_job(12)))
    server.on("POST", "/jobs/12/cancel", said(200, as_job(12, "CANCELLED")))
    code, _, err = yard("slurm", "salloc", *words, "true")
    assert (code, "Unable to allocate resources: Requested nodes are busy" in err) == (1, True)
    assert len(server.to("POST", "/jobs/12/cancel")) == 1


def test_salloc_says_what_is_no_time(yard, server, said, as_job):
    server.on("POST", "/jobs", said(201, as_job(12)))
    code, _, err = yard("slurm", "salloc", "--immediate=soon", "true")
    assert (code, "Invalid --immediate specification: soon" in err) == (1, True)
    assert server.to("POST", "/jobs") == []
