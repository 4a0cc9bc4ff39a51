"""A batch script for Slurm becomes a job file, and each of its directives stands in the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.cli import batch as command
from switchyard.slurm import options, sbatch, values
from switchyard.slurm.sbatch import DIFFERS, IGNORED, REFUSED, TAKEN, convert
from switchyard.step import compress, expand, grouped, spread
from tests.examples_count import examples

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
RUNS = {"apiVersion", "kind", "name", "run", "env", "cpus"}


def script(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#SBATCH {one}\n" for one in directives) + "srun ./a.out\n"


def converted(*directives: str, **more) -> sbatch.Batch:
    return convert(script(*directives), now=NOW, **more)


def keys(*directives: str) -> dict:
    """What these directives put into the job file, beside what every script has."""
    found = converted(*directives)
    assert not found.having(REFUSED, IGNORED), found.having(REFUSED, IGNORED)
    return {key: value for key, value in found.spec.items() if key not in RUNS or (key == "cpus" and value != 1)}


@pytest.mark.parametrize(
    ("directives", "made"),
    [
        (["-p gpu", "-A nlp"], {"pool": "gpu", "project": "nlp"}),
        (["--qos=high"], {"priority": "high"}),
        (["--priority=900"], {"priority": 900}),
        (["--priority=0"], {"hold": True}),
        (["-H"], {"hold": True}),
        (["-N2", "--ntasks-per-node=4", "-c 2"], {"nodes": 2, "cpus": 8, "secrets": ["SLURM_STEP_KEY"]}),
        (["--ntasks 8", "--ntasks-per-node 4"], {"nodes": 2, "cpus": 4, "secrets": ["SLURM_STEP_KEY"]}),
        (["-n 5", "-N 2"], {"nodes": 2, "cpus": 3, "secrets": ["SLURM_STEP_KEY"]}),
        (["-N 2"], {"nodes": 2, "secrets": ["SLURM_STEP_KEY"]}),
        (["-n 4"], {"cpus": 4}),
        (["--mem=4000"], {"memory": "4000MiB"}),
        (["--mem=16G"], {"memory": "16GiB"}),
        (["--tmp=200G"], {"disk": "200GiB"}),
        (["-c 4", "--mem-per-cpu=2G"], {"cpus": 4, "memory": "8GiB"}),
        (["--gres=gpu:2", "--mem-per-gpu=8G"], {"devices": {"kind": "gpu", "count": 2}, "memory": "16GiB"}),
        (["--gres=gpu:a100:4"], {"devices": {"kind": "gpu", "model": "a100", "count": 4}}),
        (["--gres=npu:ascend910b:8"], {"devices": {"kind": "npu", "model": "ascend910b", "count": 8}}),
        (["--gres=gpu:1g.10gb:1"], {"devices": {"kind": "gpu", "partition": "1g.10gb", "count": 1}}),
        (["--gres=mps:25"], {"devices": {"kind": "gpu", "milli": 250}}),
        (["-G 8", "-N 2"], {"devices": {"kind": "gpu", "count": 4}, "nodes": 2, "secrets": ["SLURM_STEP_KEY"]}),
        (["--gpus-per-node=h100:8"], {"devices": {"kind": "gpu", "model": "h100", "count": 8}}),
        (["-n 4", "--gpus-per-task=2"], {"devices": {"kind": "gpu", "count": 8}, "cpus": 4}),
        (["--gpus-per-node=2", "--cpus-per-gpu=6"], {"devices": {"kind": "gpu", "count": 2}, "cpus": 12}),
        (["-t 90"], {"time_limit": "01:30:00"}),
        (["-t 2:30"], {"time_limit": "00:02:30"}),
        (["-t 12:00:00"], {"time_limit": "12:00:00"}),
        (["-t 1-12"], {"time_limit": "1-12:00:00"}),
        (["-t 7-00:30"], {"time_limit": "7-00:30:00"}),
        (["-b now+2hours"], {"begin": "2026-11-25T14:00:00Z"}),
        (["-b 08:30"], {"begin": "2026-11-26T08:30:00Z"}),
        (["--begin=2027-01-31T18:00:00"], {"begin": "2027-01-31T18:00:00Z"}),
        (["-x node[01-03],gpu7"], {"avoid": ["node01", "node02", "node03", "gpu7"]}),
        (["-w node1"], {"only_on": ["node1"]}),
        (["-w node[1-2]"], {"only_on": ["node1", "node2"], "nodes": 2, "secrets": ["SLURM_STEP_KEY"]}),
        (["-C ib"], {"constraint": "ib"}),
        (["--constraint='ib&(a100|h100)'"], {"constraint": "ib&(a100|h100)"}),
        (["--requeue"], {"retry": {"max": 3, "on": ["node_fail", "node_reboot"]}}),
        (["--comment='two words'"], {"labels": {"comment": "two words"}}),
        (["--array=0-9%2"], {"array": {"indexes": "0-9", "max_parallel": 2}}),
        (["-a 1,3,5"], {"array": {"indexes": "1,3,5"}}),
        (
            ["--dependency=afterok:1:2,afterany:3,singleton"],
            {
                "depends_on": [
                    {"job": 1, "when": "afterok"},
                    {"job": 2, "when": "afterok"},
                    {"job": 3, "when": "afterany"},
                    {"when": "singleton"},
                ]
            },
        ),
    ],
)
def test_a_directive_becomes_a_key(directives, made):
    assert keys(*directives) == made


@pytest.mark.parametrize(
    ("directive", "verdict"),
    [
        ("--mail-type=END", IGNORED), ("--nodelist=n1", TAKEN), ("--nodelist=n[1-2] -N 3", REFUSED),
        ("-w n[1-2] -N 1", REFUSED),
        ("-w n[1-999999999]", REFUSED), ("-w n[0-999999]", REFUSED), ("-C a*2", REFUSED), ("-C [a|b]", REFUSED),
        ("-C a;b", REFUSED), ("--prefer=a", IGNORED), ("-F hosts", IGNORED), ("packjob", REFUSED),
        ("--exclusive", IGNORED), ("--mem=0", IGNORED), ("--tmp=0", IGNORED),
        ("--nothing-like-it", IGNORED), ("-t UNLIMITED", IGNORED), ("hostname", IGNORED), ("", IGNORED),
        ("-N 2-4", DIFFERS), ("-p a,b", DIFFERS), ("--qos=normal", DIFFERS), ("-G 3 -N 2", DIFFERS),
        ("-o out-%j.txt", DIFFERS), ("-o /shared/%x-%j.out", TAKEN), ("--export=NONE", TAKEN),
        ("--export=ALL", DIFFERS),
        ("--signal=B:USR1@60", TAKEN), ("--parsable", TAKEN), ("--job-nam=x", TAKEN),
        ("--nodes=two", REFUSED), ("-N 9999999999", REFUSED), ("-n 999999999 --ntasks-per-node=1", REFUSED),
        ("-t 1:2:3:4", REFUSED), ("-t 400-0", REFUSED), ("--mem=much", REFUSED), ("--gres=gpu:-1", REFUSED),
        ("-d afterok:x", REFUSED), ("-d afterok:1?afterok:2", REFUSED), ("-a 0-999999999", REFUSED),
        ("-a 5-1", REFUSED),
        ("-x n[0-999999]", REFUSED), ("--signal=NOPE", REFUSED), ("hetjob", REFUSED), ("--account", REFUSED),
        ("--begin=soon", REFUSED), ("--begin=now+999999999weeks", REFUSED), ("--hold=x", REFUSED),
        ("-n 1\r", REFUSED),
    ],
)  # fmt: skip
def test_each_directive_has_its_verdict(directive, verdict):
    found = converted(directive)
    assert found.having(verdict), found.report
    # Why is said too, but for what is taken as a number that another directive completes.
    assert all(one.said for _, one in found.having(IGNORED, REFUSED))


def test_the_last_word_holds_and_the_command_line_has_it():
    found = converted("-n 2", "-n 3", given=["-n", "4", "-J", "named"])
    assert (found.spec["cpus"], found.spec["name"]) == (4, "named")
    assert [(line.number, one.verdict) for line in found.report for one in line.findings][:2] == [
        (2, IGNORED),
        (3, IGNORED),
    ]


def test_directives_end_where_the_commands_begin():
    found = convert("#!/bin/sh\n# x\n\n#SBATCH -n 2\necho\n#SBATCH -n 3\n")
    assert found.spec["cpus"] == 2
    assert [line.number for line in found.report] == [4, 6]


def test_variables_are_those_of_slurm_and_those_that_export_names():
    found = converted(
        "-n 4", "-c 2", "-J x", """--export='A=1,HOME,B="a,b",MISSING' """, environ={"HOME": "/h", "TOKEN": "t"}
    )
    assert found.spec["env"] == {
        "A": "1",
        "HOME": "/h",
        "B": "a,b",
        "SLURM_NTASKS": "4",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_JOB_NAME": "x",
    }
    assert "not set here: MISSING" in [one.said for _, one in found.having(DIFFERS)]
    # Frameworks take SLURM_NTASKS for a sign that srun has started them: it is there only where the script asks for it.
    assert "SLURM_NTASKS" not in converted("-N 2").spec["env"]


def test_a_script_stays_as_it_is_whatever_stands_in_it():
    text = "#!/bin/sh\n#SBATCH -n 1\ncat <<'SBATCH'\n$HOME `x` \\ \nSBATCH\n"
    run = convert(text).spec["run"]
    assert text in run
    assert run.count("<<'SBATCH_'\n") == 1
    assert run.endswith("\nSBATCH_\n")


def test_a_script_is_known_by_its_lines():
    assert command.is_meant("job", script("-n 1"))
    assert command.is_meant("job.sh", "#SBATCH -n 1\n")
    assert not command.is_meant("job.yaml", "run: |\n  #!/bin/sh\n  #SBATCH -n 1\n")
    assert not command.is_meant("job.sh", "#!/bin/sh\necho\n")


# -------------------------------------------------------------------------------------------------------------- the law

pieces = st.sampled_from(
    [
        "#SBATCH", "#SBATCH ", "--nodes=", "-N", "-n", "--gres=", "gpu:", "1", "99999999999999999999", "\n", "\r\n",
        " ", "=", "-t", "--time", "1-2:3", "\x00", "\x1b[2J", "'", '"', "\\", "#", "-d", "afterok:", "?", "-a",
        "0-9", "%", "-x", "n[1-", "]", "--export=", "A=1,", "ALL", "--signal=", "B:", "@", "-b", "now+", "hetjob",
        "--wrap", "-o", "/x", "--mem=", "G", "\ud800", "é", "\u202e", "echo"
    ]
)  # fmt: skip
texts = st.one_of(
    st.text(max_size=300),
    st.lists(pieces, max_size=40).map("".join),
    st.lists(st.lists(pieces, max_size=6).map("".join), max_size=12).map(
        lambda ones: "\n#SBATCH ".join(["#!x", *ones])
    ),
)


@settings(max_examples=examples(400), deadline=None)
@given(texts)
def test_no_text_breaks_it_and_every_line_is_reported_once(text):
    found = convert(text, now=NOW)
    lines = [number for number, line in enumerate(text.split("\n"), 1) if line.startswith("#SBATCH")]
    directives = [number for number in lines if options.re.match(r"#SBATCH(\s|$)", text.split("\n")[number - 1])]
    assert [line.number for line in found.report if line.number] == directives
    assert all(line.findings for line in found.report)
    assert all(one.verdict in (TAKEN, DIFFERS, IGNORED, REFUSED) for line in found.report for one in line.findings)
    assert len(json.dumps(found.spec)) < 20 * len(text) + 20_000
    printed = "\n".join(command.told(found, "x"))
    assert "\x1b" not in printed
    assert "\x00" not in printed


def test_what_is_hostile_is_bounded():
    many = convert("#!/bin/sh\n" + "#SBATCH -n 2 --comment=x\n" * 100_000)
    assert len(many.report) <= sbatch.MOST_LINES + 2
    assert many.having(REFUSED)
    assert len(many.spec["run"]) < 1000
    long = converted("--comment=" + "x" * 90_000)
    assert long.having(REFUSED)
    assert "labels" not in long.spec


names = st.lists(st.from_regex(r"[a-z]{1,3}-?(0[0-9]|[1-9][0-9]{0,2}|)", fullmatch=True), max_size=30, unique=True)


@given(names)
def test_a_host_list_names_the_same_hosts(hosts):
    assert sorted(expand(compress(hosts))) == sorted(hosts)


@given(st.integers(1, 200), st.integers(1, 20))
def test_every_task_is_on_one_node(tasks, nodes):
    counts = spread(tasks, nodes)
    assert sum(counts) == tasks
    assert len(counts) == min(tasks, nodes)
    assert max(counts) - min(counts) <= 1


def test_counts_are_written_as_slurm_writes_them():
    assert grouped([2, 2, 2, 1]) == "2(x3),1"


def test_a_time_is_read_as_slurm_reads_it():
    assert [values.seconds(text) for text in ("5", "5:30", "1:00:00", "2-0", "1-1:1", "1-1:1:1", "0")] == [
        300, 330, 3600, 172_800, 90_060, 90_061, None,
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------------- the command line


def test_submit_takes_a_script_and_reports_on_standard_error(yard, server, said, as_job, no_config):
    server.on("POST", "/jobs", said(201, as_job(42)))
    (no_config / "train.sbatch").write_text(script("-J sft", "-n 2", "--mail-type=END"))
    code, out, err = yard("submit", "train.sbatch", "--priority", "high")
    assert (code, out) == (0, "submitted job 42 (hello)\n")
    assert "line 4    --mail-type        ignored  which ends" in err
    sent = server.to("POST", "/jobs")[0].json
    assert (sent["name"], sent["cpus"], sent["priority"]) == ("sft", 2, "high")
    assert "workdir" not in sent
    assert yard("submit", "-q", "train.sbatch")[1:] == ("42\n", "")


def test_a_strict_submit_refuses_what_is_ignored_and_every_submit_what_cannot_be_read(yard, server, no_config):
    (no_config / "a.sbatch").write_text(script("--mail-type=END"))
    code, _, err = yard("submit", "--strict", "a.sbatch")
    assert code == 2
    assert "line 2: --mail-type" in err
    (no_config / "b.sbatch").write_text(script("-t soon"))
    code, _, err = yard("submit", "b.sbatch")
    assert code == 2
    assert "line 2: --time: give minutes" in err
    assert server.asked == []


def test_submitting_twice_under_one_key_sends_the_same_job(yard, server, said, as_job, no_config):
    server.on("POST", "/jobs", said(201, as_job(42)))
    (no_config / "two.sbatch").write_text(script("-N 2"))
    for key in ("a", "a", "b"):
        yard("submit", "-q", "--idempotency-key", key, "two.sbatch")
    first, again, other = [asked.json["env"]["SLURM_STEP_KEY"] for asked in server.to("POST", "/jobs")]
    assert first == again != other
    assert len(first) == 64


def test_the_folder_is_sent_along_if_the_script_names_something_in_it(yard, server, said, as_job, no_config):
    found = {"verdict": "starts_now", "stages": [], "preempts": []}
    server.on("POST", "/jobs", said(200, found))
    (no_config / "train.py").write_text("")
    (no_config / "a.sbatch").write_text("#!/bin/sh\n#SBATCH -n 1\nsrun python train.py --lr=1\n")
    _, out, err = yard("submit", "--dry-run", "a.sbatch")
    assert "because train.py is in it" in err
    assert "would start now" in out
    (no_config / "b.sbatch").write_text("#!/bin/sh\n#SBATCH -n 1 -D /shared/run\nsrun python train.py\n")
    assert "because" not in yard("submit", "--dry-run", "b.sbatch")[2]
    (no_config / "c.sbatch").write_text("#!/bin/sh\n#SBATCH --test-only\ntrue\n")
    assert yard("submit", "c.sbatch")[0] == 0
    assert all(asked.query == {"dry_run": "placement"} for asked in server.to("POST", "/jobs"))
