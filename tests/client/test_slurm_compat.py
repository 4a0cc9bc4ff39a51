"""Commands of Slurm's names print what the real ones printed in the same situations (see slurm_fixtures/record.py)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from switchyard.slurm.commands.records import LONG

REAL = json.loads((Path(__file__).parent / "slurm_fixtures" / "slurm.json").read_text())
NUMBER = REAL["jobs"]
PRINTED = "".join(one["out"] for one in REAL["answers"])
PRIORITY = {
    int(a): int(b) for a, b in re.findall(r"^JobId=([0-9]+) .*\n.*\n +Priority=([0-9]+)", PRINTED, re.MULTILINE)
}
PRIORITY |= {int(a): int(b) for a, b in re.findall(r"^([0-9]+)\S*\|.*\|([0-9]+)$", PRINTED, re.MULTILINE)}
# What has no counterpart, and is told by tests of its own or in docs/how-to/from-slurm.md.
APART = {
    "scontrol show node": "a node here has no sockets, threads, power sensors and weights",
    "scontrol show partition": "a pool has no groups, preemption modes and job factors",
    "scontrol -o show job": "one line of what `show job` prints",
    "scontrol show job": "compared field by field below",
}


def situation(as_job, name: str, state: str, **more):
    """A job as the REST interface gives it, in one of the recorded situations."""
    now = datetime.now(UTC)
    stage = {
        "device_kind": "cpu", "nodes": 1, "time_limit_s": 3600, "asks_said": [{"code": "OneCore", "params": {}}],
        "attempts": 1, "eligible_at": now.isoformat(), "evaluated_at": now.isoformat(), "detail_said": [],
        "begin_at": None,
    }  # fmt: skip
    has_begun = state not in ("PENDING", "HELD")
    if has_begun:
        stage["placed"] = [{"node": "node1", "rank": 0, "devices": []}]
    number = NUMBER[name]
    job = as_job(number, state, name=name, pool="main", submitted_at=(now - timedelta(seconds=5)).isoformat())
    job["priority"] = {"class": "normal", "value": PRIORITY[number]}
    job["started_at"] = (now - timedelta(seconds=2)).isoformat() if has_begun else None
    job["ended_at"] = now.isoformat() if state in ("COMPLETED", "FAILED", "CANCELLED") else None
    memory = more.pop("memory_mib", 100)
    job["depends_on"] = more.pop("depends_on", [])
    job["array"] = more.pop("array", None)
    job["number"] = more.pop("number", number)
    job["stages"][0] |= {**stage, **more}
    return job, memory


def cores(count: int) -> list[dict]:
    return [{"code": "SomeCores", "params": {"cores": str(count)}}]


def situations(as_job):
    """All of them, by number, with their memory on a node in MiB."""

    def reason(code):
        return {"code": code, "text": code, "acts": "nobody"}

    full, killed = reason("CapacityInsufficient"), [{"code": "Signal", "params": {"signal": "SIGKILL"}}]
    made = [
        situation(as_job, "completed", "COMPLETED", asks_said=cores(2), time_limit_s=300, exit_code=0, memory_mib=200),
        situation(as_job, "failed", "FAILED", cause="EXIT_CODE", exit_code=3),
        situation(as_job, "killed", "FAILED", cause="SIGNAL", detail_said=killed),
        situation(as_job, "stopped", "CANCELLED", cause="CANCELLED"),
        situation(as_job, "running", "RUNNING", asks_said=cores(8), time_limit_s=1800, memory_mib=1000),
        situation(as_job, "pending", "PENDING", asks_said=cores(4), time_limit_s=600, reason=full),
        situation(as_job, "held", "HELD", reason=reason("Held")),
        situation(as_job, "dependent", "PENDING", reason=reason("DependencyPending"),
                  depends_on=[{"job": str(NUMBER["running"]), "when": "afterok", "verdict": ""}]),
        situation(as_job, "later", "PENDING", reason=reason("BeginTime")),
        *(
            situation(as_job, "array", "PENDING", reason=reason("PriorityBehind"), number=NUMBER["array"] + index - 1,
                      array={"number": NUMBER["array"], "index": index})
            for index in (1, 2, 3)
        ),
    ]  # fmt: skip
    return {job["number"]: (job, memory) for job, memory in made}


@pytest.fixture
def cluster(server, said, as_job):
    """A control plane with the recorded situations."""
    jobs = situations(as_job)

    def listed(asked):
        wanted = set(asked.query.get("state", "").split(",")) - {""}
        is_active = [j for j, _ in jobs.values() if j["state"] not in ("COMPLETED", "FAILED", "CANCELLED")]
        found = [j for j, _ in jobs.values() if not wanted or j["state"] in wanted]
        found += [j for j in is_active if "ACTIVE" in wanted]
        if asked.query.get("array"):
            found = [j for j, _ in jobs.values() if j["array"] and str(j["array"]["number"]) == asked.query["array"]]
        return said(200, {"results": found[::-1], "next": None})

    server.on("GET", "/jobs", listed)
    for number, (job, memory) in jobs.items():
        job["stages"][0]["memory_bytes"] = memory << 20
        server.on("GET", f"/jobs/{number}", said(200, job))
        for act in ("hold", "release", "cancel"):
            server.on("POST", f"/jobs/{number}/{act}", said(200, job))
    server.on("GET", "/whoami", said(200, {"user": "mia"}))
    core = {"kind": "cpu", "capacity_milli": 8000, "claimed_milli": 8000, "uuid": "c"}
    node = {"name": "node1", "state": "READY", "pools": ["main"], "memory_bytes": 8000 << 20, "devices": [core]}
    server.on("GET", "/nodes", said(200, {"results": [node], "next": None}))
    server.on(
        "GET", "/pools", said(200, {"results": [{"name": "main", "max_limit_s": 86400, "default_limit_s": 3600}]})
    )
    return server


def recorded(command: str) -> list[dict]:
    """What was recorded of a command, but for what stands apart."""
    answers = [one for one in REAL["answers"] if one["words"][0] == command]
    return [one for one in answers if not any(" ".join(one["words"]).startswith(apart) for apart in APART)]


def alike(text: str) -> str:
    """Take out what is meant to differ: times, the limit of an array, who cancelled, the star of the default."""
    text = re.sub(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}", "TIME", text)
    text = re.sub(r"\b0:0[0-9]\b", "0:0X", text)
    text = re.sub(r"( *)(\S*)(%1\])", lambda m: f"{m[1]}{'  ' if m[1] else ''}{m[2]}]", text)
    text = text.replace("1-3%1|", "[1-3]|")
    for real, ours in (("ED by 1000", "ED"), ("CANCELLED+", " CANCELLED"), ("CANCELLED b+", "CANCELLED   ")):
        text = text.replace(real, ours)
    text = re.sub(r"main\*(?=  )", "main ", text.replace("    main*", "     main")).replace("main*", "main")
    return re.sub(r"\bJob [0-9]+\b", "Job N", text)


@pytest.mark.parametrize("command", ["squeue", "sacct", "sinfo", "scontrol"])
def test_it_prints_what_slurm_prints(cluster, yard, command):
    assert recorded(command)
    for real in recorded(command):
        code, out, err = yard("slurm", *real["words"])
        assert alike(out) == alike(real["out"]), real["words"]
        assert code == real["code"], real["words"]
        # Slurm complains of a bar behind a percent sign, and prints it all the same.
        if "%%|" not in " ".join(real["words"]):
            assert err.strip() == real["err"].strip(), real["words"]


FIELDS = (
    "JobId", "JobName", "JobState", "Dependency", "Priority", "Account", "QOS", "ExitCode", "TimeLimit", "Partition",
    "NodeList", "NumNodes", "NumCPUs", "TRES", "Restarts", "MinMemoryNode",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["completed", "failed", "killed", "stopped", "running", "pending", "held", "dependent"]
)
def test_a_job_is_shown_with_slurms_fields_in_slurms_order(cluster, yard, name):
    def fields(text):
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    words = ["scontrol", "show", "job", str(NUMBER[name])]
    real = fields(next(one["out"] for one in REAL["answers"] if one["words"] == words))
    out = yard("slurm", *words)[1]
    ours = fields(out)
    # Slurm was told memory for each core; a stage has it for a node. It has a plan for a waiting job, or none.
    names = {"MinMemoryCPU": "MinMemoryNode"}
    assert list(ours) == [names.get(one, one) for one in real if one != "SchedNodeList"]
    expected = {key: value for key, value in real.items() if key in FIELDS}
    if name == "pending":
        del expected["TRES"]  # its memory is for each of four cores
    if name == "stopped":
        # Slurm tells by which signal it was ended; here that a stage was cancelled is its cause.
        expected["ExitCode"] = "0:0"
    assert {key: ours[key] for key in expected} == expected
    if name not in ("killed", "pending"):
        assert ours["Reason"] == real["Reason"]
    one_line = yard("slurm", "scontrol", "-o", "show", "job", str(NUMBER[name]))[1]
    assert one_line.count("\n") == 1
    assert fields(one_line) == ours


def test_scancel_is_as_silent_as_slurms_and_as_loud(cluster, yard):
    for real in (one for one in REAL["answers"] if one["words"][0] == "scancel"):
        code, out, err = yard("slurm", *real["words"])
        assert (code, out, err.strip()) == (real["code"], real["out"], real["err"].strip()), real["words"]
    cancelled = {asked.path for asked in cluster.asked if asked.path.endswith("/cancel")}
    wanted = [NUMBER[name] for name in ("dependent", "pending", "running")]
    assert cancelled == {f"/api/v1/jobs/{number}/cancel" for number in wanted}


def test_scancel_chooses_and_never_ends_the_jobs_of_others_by_a_name(cluster, yard):
    assert yard("slurm", "scancel", "-n", "held", "--state=PENDING")[0] == 0
    assert yard("slurm", "scancel", str(NUMBER["array"]))[0] == 0
    assert [asked.path for asked in cluster.asked if asked.path.endswith("/cancel")] == [
        f"/api/v1/jobs/{number}/cancel" for number in (NUMBER["held"], NUMBER["array"])
    ]
    assert next(asked for asked in cluster.asked if asked.path == "/api/v1/jobs").query["user"] == "me"
    assert yard("slurm", "scancel", "-s", "STOP", "5")[0] == 1


def test_scancel_passes_signals_on(cluster, yard, said):
    number = NUMBER["running"]
    cluster.on("POST", f"/jobs/{number}/signal", said(200, {"number": number, "signal": "SIGUSR1", "processes": 1}))
    for word in ("USR1", "SIGUSR1", "10"):
        assert yard("slurm", "scancel", "-s", word, str(number))[0] == 0
    assert [asked.json["signal"] for asked in cluster.to("POST", f"/jobs/{number}/signal")] == ["SIGUSR1"] * 3
    assert not [asked for asked in cluster.asked if asked.path.endswith("/cancel")]


def test_scontrol_requeues_and_changes_jobs(cluster, yard, said, as_job):
    number = NUMBER["pending"]
    cluster.on("POST", f"/jobs/{number}/requeue", said(200, as_job(number)))
    assert yard("slurm", "scontrol", "requeue", str(number))[0] == 0
    cluster.on("PATCH", f"/jobs/{number}", said(200, as_job(number)))
    told = ["TimeLimit=90", "Partition=night", "QOS=high", "NumNodes=2", "StartTime=2100-01-01T00:00:00"]
    assert yard("slurm", "scontrol", "update", f"JobId={number}", *told)[0] == 0
    (asked,) = cluster.to("PATCH", f"/jobs/{number}")
    patch = dict(asked.json)
    assert patch.pop("begin").startswith(("2099-12-31", "2100-01-01"))
    assert patch == {"time_limit": 5400, "pool": "night", "priority": "high", "nodes": 2}
    for wrong in (
        [f"JobId={number}"],
        [f"JobId={number}", "Nice=5"],
        [f"JobId={number}", "TimeLimit=soon"],
        ["Nice=5"],
    ):
        assert yard("slurm", "scontrol", "update", *wrong)[0] == 1, wrong


def test_an_array_that_is_no_job_is_its_elements(cluster, yard, as_problem):
    number = NUMBER["array"]
    cluster.on("GET", f"/jobs/{number}", as_problem(404, "not_found", "none"))
    assert yard("slurm", "squeue", "-h", "-j", str(number), "-o", "%i %A")[1] == f"{number}_[1-3] {number}\n"
    assert yard("slurm", "squeue", "-h", "-r", "-S", "i", "-j", str(number), "-o", "%i")[1] == "".join(
        f"{number}_{index}\n" for index in (1, 2, 3)
    )


@pytest.mark.parametrize(
    ("state", "cause", "short"),
    [
        ("FAILED", "TIMEOUT", "TO"), ("FAILED", "OUT_OF_MEMORY", "OOM"), ("FAILED", "NODE_FAIL", "NF"),
        ("STARTING", "", "CF"), ("STOPPING", "", "CG"), ("SUSPENDED", "", "S"), ("FAILED", "PREEMPTED", "PR"),
    ],
)  # fmt: skip
def test_every_state_has_slurms_word(yard, server, said, as_job, state, cause, short):
    job = as_job(3, state)
    job["stages"][0] |= {"cause": cause}
    server.on("GET", "/jobs/3", said(200, job))
    assert yard("slurm", "squeue", "-h", "-t", "all", "-j", "3", "-o", "%t %T")[1] == f"{short} {LONG[short]}\n"


# --------------------------------------------------------------------------------------------------------------- sbatch


@pytest.fixture
def accepts(server, said, as_job):
    ended = as_job(12, "FAILED")
    ended["stages"][0] |= {"exit_code": 7, "cause": "EXIT_CODE"}
    server.on("GET", "/jobs/12", said(200, ended))
    device = {"node": "node1", "kind": "cpu", "index": 0}
    preview = {"verdict": "starts_now", "stages": [{"name": "main", "starts_now": True, "devices": [device]}]}

    def answer(asked):
        if asked.query.get("dry_run"):
            return said(200, preview)
        if asked.json.get("pool") == "nonsense":
            errors = [{"pointer": "/pool", "code": "unknown_pool", "detail": "there is none"}]
            body = {"status": 422, "code": "invalid_spec", "detail": "x", "errors": errors}
            return said(422, body, {"Content-Type": "application/problem+json"})
        return said(201, as_job(12))

    server.on("POST", "/jobs", answer)
    return server


def test_sbatch_says_what_slurms_says(accepts, yard, no_config):
    (no_config / "noscript.sh").write_text("echo\n")
    for real in recorded("sbatch"):
        code, out, err = yard("slurm", *real["words"])
        err = alike(re.sub(r"in partition \w+", "in partition main", err))
        assert (code, out, err.strip()) == (real["code"], real["out"], alike(real["err"]).strip()), real["words"]


def test_sbatch_sends_the_script_with_its_arguments(accepts, yard, no_config):
    (no_config / "train.sh").write_text("#!/bin/bash\n#SBATCH -J inside -n 2\n#SBATCH --mail-type=END\necho $1\n")
    code, out, err = yard("slurm", "sbatch", "--parsable", "-J", "outside", "train.sh", "one two", "-n", "9")
    assert (code, out, err) == (0, "12\n", "")
    sent = accepts.to("POST", "/jobs")[0].json
    assert (sent["name"], sent["cpus"]) == ("outside", 2)
    assert "batch -- 'one two' -n 9 <<'SBATCH'\n#!/bin/bash\n" in sent["run"]
    assert "--mail-type ignored: " in yard("slurm", "sbatch", "train.sh")[2]


def test_srun_is_a_job_of_one_step_with_its_output_and_its_code(accepts, yard, said):
    streams = [{"stage": "main", "attempt": 1, "rank": 0, "stream": "out", "size_bytes": 6}]
    accepts.on("GET", "/jobs/12/streams", said(200, {"results": streams}))
    accepts.on("GET", "/jobs/12/logs", said(200, b"hello\n", {"Content-Type": "text/plain", "X-Log-Next-Offset": "6"}))
    code, out, _ = yard("slurm", "srun", "-n", "3", "-l", "--gres=gpu:1", "echo", "a b")
    assert (code, out) == (7, "hello\n")
    sent = accepts.to("POST", "/jobs")[0].json
    assert (sent["name"], sent["cpus"], sent["devices"]) == ("echo", 3, {"kind": "gpu", "count": 1})
    assert "exec srun --label -- echo 'a b'\n" in sent["run"]


def test_each_command_has_its_file():
    folder = Path(__file__).parents[2] / "deploy" / "slurm-compat"
    from switchyard.cli.slurm import COMMANDS

    assert sorted(path.name for path in folder.iterdir()) == sorted(COMMANDS)
    assert all(
        path.stat().st_mode & 0o111 and f"yard slurm {path.name} " in path.read_text() for path in folder.iterdir()
    )
