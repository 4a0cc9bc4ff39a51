"""Job files of other systems become job files, and whatever is not in them is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard import jobfile
from switchyard.cli import spec
from switchyard.convert import dstack, kubernetes, skypilot, source
from switchyard.problem import SpecError
from tests.examples_count import examples

FILES = Path(__file__).parent / "specs"
SKY = """\
export SKYPILOT_NUM_NODES="$YARD_NNODES"
export SKYPILOT_NODE_RANK="$YARD_NODE_RANK"
pip install -r requirements.txt
torchrun --nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK train.py
"""
DSTACK = """\
export DSTACK_NODES_NUM="$YARD_NNODES"
pip install -r requirements.txt && \\
torchrun --nnodes $DSTACK_NODES_NUM train.py
"""

MADE = {
    "k8s": {
        "apiVersion": "v1", "kind": "Job", "name": "sft", "pool": "train", "priority": "high",
        "labels": {"team": "nlp"}, "time_limit": 3600, "retry": {"max": 3}, "preemption": {"grace": "60s"},
        "array": {"indexes": "0-3", "max_parallel": 2}, "image": "registry.local/train:1",
        "command": ["python", "train.py", "--lr", "${LR}"], "env": {"LR": "1e-4"},
        "secrets": [{"name": "HF_TOKEN", "env": "TOKEN"}], "cpus": 1.5, "memory": "8GiB", "disk": "1GiB",
        "devices": {"kind": "gpu", "vendor": "nvidia", "count": 2},
    },
    "skypilot": {
        "apiVersion": "v1", "kind": "Job", "name": "sft", "workdir": ".", "nodes": 2,
        "env": {"LR": "0.0001", "EPOCHS": "3"}, "secrets": ["HF_TOKEN"],
        "command": ["bash", "-c", SKY],
        "devices": {"model": "H100", "count": 8}, "cpus": 32, "memory": "256GiB", "image": "registry.local/train:1",
    },
    "dstack": {
        "apiVersion": "v1", "kind": "Job", "name": "sft", "image": "registry.local/train:1", "nodes": 2,
        "env": {"LR": "1e-4"},
        "command": ["sh", "-c", DSTACK],
        "time_limit": "12h", "preemption": {"grace": "60s"}, "priority": "high",
        "retry": {"max": 10, "on": ["node_fail", "node_reboot", "exit_code", "signal"]}, "cpus": 16, "memory": "128GiB",
        "disk": "200GiB", "utilization_policy": {"min": "10%", "window": "1h", "action": "stop"},
        "ports": [{"name": "port-8888", "port": 8888}, {"name": "port-8080", "port": 8080}],
        "devices": {"any_of": [
            {"kind": "gpu", "memory": "40GiB", "count": 4, "model": "A100"},
            {"kind": "gpu", "memory": "40GiB", "count": 4, "model": "H100"},
        ]},
    },
}  # fmt: skip
DROPPED = {
    "k8s": {
        "metadata.namespace", "spec.ttlSecondsAfterFinished", "spec.template.spec.restartPolicy",
        "spec.template.spec.nodeSelector.zone", "spec.template.spec.volumes[0].name",
        "spec.template.spec.containers[0].env[2]", "spec.template.spec.containers[0].args",
        "spec.template.spec.containers[0].volumeMounts[0].name",
        "spec.template.spec.containers[0].volumeMounts[0].mountPath", "spec.template.spec.containers[1].name",
        "spec.template.spec.containers[1].image",
    },
    "skypilot": {"setup", "resources.infra", "file_mounts./data"},
    "dstack": {"env.HF_TOKEN", "priority", "retry.duration", "resources.shm_size", "spot_policy", "ports[0]"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
def test_a_file_becomes_a_job_file_and_all_the_rest_is_told(kind):
    text = (FILES / f"{kind}.yaml").read_text()
    document = spec.document(text, kind)
    assert spec.kind_of("job.yaml", text) == kind
    made, dropped = spec.converted(kind, document)
    assert made == MADE[kind]
    assert {where for where, _ in dropped} == DROPPED[kind]
    assert all(why for _, why in dropped)


@pytest.mark.parametrize("kind", MADE)
def test_what_is_printed_is_the_same_job(yard, kind):
    code, out, err = yard("spec", "convert", str(FILES / f"{kind}.yaml"))
    assert code == 0
    assert jobfile.parse(out) == MADE[kind]
    assert all(where in err for where in DROPPED[kind])
    assert yard("spec", "convert", "-q", "--strict", str(FILES / f"{kind}.yaml"))[::2] == (2, "")


def test_a_batch_script_is_converted_with_its_report(yard, no_config):
    (no_config / "a.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2 --mail-type=END\nsrun ./a.out\n")
    code, out, err = yard("spec", "convert", "a.sbatch")
    assert code == 0
    made = jobfile.parse(out)
    assert (made["nodes"], len(made["env"]["SLURM_STEP_KEY"]), made["secrets"]) == (2, 64, ["SLURM_STEP_KEY"])
    assert "run: |" in out
    assert "--mail-type        ignored" in err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name: x\nrun: y\n", "--from"),
        ("kind: Job\napiVersion: v1\nrun: y", "--from"),
        ("type: service\ncommands: []", "task"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_a_sentence(yard, no_config, text, word):
    (no_config / "a.yaml").write_text(text)
    code, out, err = yard("spec", "convert", "a.yaml")
    assert (code, out) == (2, "")
    assert word in err


@pytest.mark.parametrize(
    ("gpu", "ask"),
    [
        ("24GB", {"kind": "gpu", "memory": "24GiB"}), ("H100:8", {"kind": "gpu", "model": "H100", "count": 8}),
        ("nvidia:A100:80GB:2..4", {"kind": "gpu", "vendor": "nvidia", "model": "A100", "memory": "80GiB", "count": 2}),
        (2, {"kind": "gpu", "count": 2}),
    ],
)  # fmt: skip
def test_a_gpu_of_dstack(gpu, ask):
    assert dstack.convert({"type": "task", "resources": {"gpu": gpu}}).spec["devices"] == ask


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        ({"min_gpu_utilization": 20, "time_window": 600}, 600),
        ({"min_gpu_utilization": 20, "time_window": "30m"}, "30m"),
        ({"min_gpu_utilization": 0, "time_window": "30m"}, None),
        ({"min_gpu_utilization": 20, "time_window": "1m"}, None),
        ({"min_gpu_utilization": 20, "time_window": "2d"}, None),
        ({"min_gpu_utilization": 20}, None),
        ("never", None),
    ],
)
def test_when_an_idle_task_of_dstack_is_stopped(policy, window):
    made = dstack.convert({"type": "task", "utilization_policy": policy})
    assert made.spec.get("utilization_policy", {}).get("window") == window
    assert bool(made.dropped) is (window is None)


@pytest.mark.parametrize(
    ("asked", "ask"),
    [
        ("A100", {"model": "A100", "count": 1}), ("A100:0.5", {"model": "A100", "milli": 500}),
        ("A100-80GB:4", {"model": "A100", "memory": "79GiB", "count": 4}),
        (["H100:8", "A100:8"], {"any_of": [{"model": "H100", "count": 8}, {"model": "A100", "count": 8}]}),
    ],
)  # fmt: skip
def test_accelerators_of_skypilot(asked, ask):
    assert skypilot.convert({"resources": {"accelerators": asked}, "run": "x"}).spec["devices"] == ask


# ------------------------------------------------------------------------------------------------------------- the laws

KEYS = [
    "spec", "template", "containers", "resources", "limits", "requests", "cpu", "memory", "nvidia.com/gpu", "env",
    "name", "valueFrom", "secretKeyRef", "metadata", "labels", "args", "command", "completions", "parallelism", "envs",
    "run", "setup", "accelerators", "any_of", "num_nodes", "commands", "gpu", "count", "retry", "on_events", "priority",
    "nodes", "max_duration", "image", "workingDir", "image_id", "job_recovery", "working_dir", "suspend",
    "backoffLimit",
]  # fmt: skip
words = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.text(max_size=8),
    st.sampled_from(["8Gi", "4..", "H100:8", "2", "$(X)", "off", "docker:x", "1500m", "24GB", "A=1"]),
)  # fmt: skip
documents = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        words,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
        max_leaves=12,
    ),
    max_size=8,
)
HEADS = {
    kubernetes: {"kind": "Job", "apiVersion": "batch/v1"},
    skypilot: {},
    dstack: {"type": "task"},
}


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(list(HEADS)), documents)
def test_no_document_breaks_a_converter(system, document):
    # A container and a pod are where most of a Job stands.
    pod = {"spec": {"template": {"spec": {**document, "containers": [document]}}}} if system is kubernetes else {}
    before = repr(document)
    try:
        made = system.convert({**document, **pod, **HEADS[system]})
    except SpecError:
        return
    assert repr(document) == before
    assert len(made.dropped) <= source.MOST_DROPPED + 1
    assert made.spec["kind"] == "Job"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.one_of(words, st.lists(words, max_size=3)), max_size=5
    )
)
def test_what_is_written_is_read_as_the_same(values):
    assert jobfile.parse(jobfile.written({"name": "x", **values})) == {"name": "x", **values}


def test_folders_of_nodes_become_mounts_and_one_repository_the_code() -> None:
    pod = {
        "volumes": [{"name": "d", "hostPath": {"path": "/data"}}, {"name": "c", "persistentVolumeClaim": {}}],
        "containers": [
            {
                "image": "i",
                "command": ["true"],
                "volumeMounts": [
                    {"name": "d", "mountPath": "/in", "subPath": "images", "readOnly": True},
                    {"name": "c", "mountPath": "/out"},
                ],
            }
        ],
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    found = kubernetes.convert(job)
    assert found.spec["mounts"] == [{"source": "/data/images", "path": "/in", "readonly": True}]
    assert {where for where, _ in found.dropped} >= {"spec.template.spec.volumes[0].name"}

    task = {"type": "task", "commands": ["true"], "volumes": ["/data:/in", "named"]}
    found = dstack.convert({**task, "repos": [{"url": "https://example.org/c.git", "branch": "main"}]})
    assert found.spec["mounts"] == [{"source": "/data", "path": "/in", "readonly": False}]
    assert found.spec["workdir"] == {"git": {"url": "https://example.org/c.git", "rev": "main"}}
    assert [where for where, _ in found.dropped] == ["volumes[0]"]

    found = skypilot.convert({"run": "true", "workdir": {"url": "https://example.org/c.git", "ref": "v1"}})
    assert found.spec["workdir"] == {"git": {"url": "https://example.org/c.git", "rev": "v1"}}
