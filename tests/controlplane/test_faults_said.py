"""What a job file, a demand or an adjustment is refused with is Chinese for whoever reads Chinese."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils.translation import gettext, override

from agents.protocol import Phase
from controlplane.clauses import clause, told
from controlplane.jobs import masked, service, values
from controlplane.jobs.adjust import Unadjustable, adjust
from controlplane.jobs.models import Attempt, Stage
from controlplane.jobs.spec import InvalidSpec, Resolved, check_sizes, resolve
from controlplane.pools.models import Pool
from tests.controlplane.people import Town
from tests.controlplane.test_pages_said import check, english_in
from tests.controlplane.test_spec import FAULTS, accepted, rules
from tests.record.test_partitions import MADE, MAKES, node
from tests.record.yard import stage

JOBS = Path(__file__).parents[2] / "controlplane" / "jobs"
# What the readers of job files say; possible.py and adjust.py need the record.
READERS = ("values", "section", "spec", "demand", "flow")
# Examples and what the asker wrote stay as they are: whatever is quoted or in brackets, and lists of keys.
AS_WRITTEN = re.compile(r'"[^"]*"|\'[^\']*\'|\{[^}]*\}|\[[^\]]*\]')
IDEOGRAPH = re.compile("[\u4e00-\u9fff]")
CHINESE = {"Accept-Language": "zh-CN"}

SHA = "a" * 64
FLOW = {"name": "a", "run": "x", "outputs": ["o"]}
READS = {"from": "a", "output": "o"}
MORE: list[Any] = [
    {"array": {"indexes": "0-9999"}, "stages": [{"name": name, "run": "x"} for name in "abc"]},
    {"array": {"indexes": "0-9999"}, "run": "x" * 20_000},
    {"run": "x", "shm": 1, "labels": {"a": []}, "mounts": 1},
    {"run": "x", "workdir": {}},
    {"run": "x", "workdir": {"git": {"rev": "a..b", "username": "-"}}},
    {"run": "x", "bundle": SHA, "workdir": {"git": {"url": "https://example.org/c", "secret": "NONE"}}},
    {"run": "x", "workdir": {"git": {"url": "http://example.org/c", "secret": "a b"}}},
    {"run": "x", "workdir": {"git": {"url": "https://a:b@example.org/c"}}},
    {"run": "x", "workdir": {"git": {"url": "https://10.0.0.1/c"}}},
    {"run": "x", "workdir": {"git": {"url": "https://example.org"}}},
    {"run": "x", "mounts": [{"path": "/in"}, {"source": "a"}, {"source": "/data"}]},
    {"run": "x", "labels": {f"n{i}": i for i in range(65)}},
    {"run": "x", "bundle": SHA},
    {"run": "x", "name": 5, "begin": "1900-01-01T00:00:00Z"},
    {"run": "x", "deadline": True},
    {"run": "a\0b"},
    {"run": "x", "reservation": "A B"},
    {"run": 3},
    {"run": "x", "memory": "8 gigs"},
    {"run": "x", "cpus": 5000, "image": "-v"},
    {"run": "x", "retry": {"on": "bad_luck"}},
    {"run": "x", "avoid": [3, {"a b": "c"}, "n9"], "site": "x y"},
    {"run": "x", "only_on": [3, "n9"]},
    {"run": "x", "constraint": 7},
    {"run": "x", "constraint": "a b"},
    {"run": "x", "constraint": "a*2"},
    {"run": "x", "constraint": "a&b|c"},
    {"run": "x", "constraint": "a&"},
    {"run": "x", "constraint": "(a"},
    {"run": "x", "constraint": "a)"},
    {"run": "x", "constraint": "(" * 20 + "a" + ")" * 20},
    {"run": "x", "constraint": "|".join(["a"] * 65)},
    {"run": "x", "constraint": "|".join(["(a&b)"] * 30)},
    {
        "run": "x",
        "constraint": "&".join("(" + "|".join(f"(a{i}{j}&b{i}{j})" for j in range(4)) + ")" for i in range(4)),
    },
    {"run": "x", "topology": {"within": "a b"}},
    {"run": "x", "disk": "1KiB", "disk_bandwidth": "fast", "network_bandwidth": "0MB/s"},
    {"run": "x", "secrets": ["TOKEN"]},
    {"run": "x", "env": {"A_TOKEN": [], "B_TOKEN": masked.MASKED}, "secrets": "A_TOKEN"},
    {"run": "x", "env": {"A": "x" * 131_072}},
    {"command": [""]},
    {"command": [None]},
    {"run": "x", "devices": {"kind": "GPU"}},
    {"run": "x", "devices": {"model": "\n", "vendor": "\n"}},
    {"run": "x", "devices": {"kind": "cpu", "partition": "1g.10gb"}},
    {"run": "x", "devices": {"kind": "npu", "partition": "1g.10gb"}},
    {"run": "x", "devices": {"partition": "1g.10gb", "milli": 3}},
    {"run": "x", "devices": {"kind": "gpu", "partition": "1g.10g"}},
    {"run": "x", "devices": {"kind": "gpu", "partition": "?"}},
    {"stages": [FLOW, {"name": "b", "run": "x", "needs": [3], "inputs": [READS]}]},
    {"stages": [FLOW, {"name": "b", "run": "x", "needs": ["a"], "inputs": [{**READS, "output": "p"}]}]},
    {"stages": [FLOW, {"name": "b", "run": "x", "needs": ["a"], "inputs": [{"from": "a", "source": "/x"}]}]},
    {"run": "x", "outputs": ["a b", "c", "c"]},
    {"run": "x", "outputs": ["a/b"], "checkpoint": {"dir": "/etc"}},
    {"run": "x", "inputs": [{}, {"source": "x", "sha256": "y"}, {"source": "/x"}, {"source": "/a b", "sha256": SHA}]},
    {"run": "x", "kind": "train"},
    {"stages": [FLOW], "promote": {"service": "chat"}},
    {"run": "x", "inputs": [{"job": 7, "output": "o"}, {"job": 7, "from": "a", "output": "o"}]},
    {"run": "x", "inputs": [{"source": "/x", "sha256": SHA, "path": "../x"}, *[{"source": "/y", "sha256": SHA}] * 2]},
]


def bad(text: str) -> bool:
    """Whether a sentence has English in it, or nothing that is Chinese."""
    return bool(english_in(AS_WRITTEN.sub("", text))) or not IDEOGRAPH.search(text)


def faults(spec: Any, **known: Any) -> list[str]:
    with override("zh-hans"), pytest.raises(InvalidSpec) as caught:
        resolve(spec, rules(**known))
    return [str(caught.value), *(fault.detail for fault in caught.value.errors)]


def all_faults() -> Iterator[str]:
    for spec in [*(spec for spec, _, _ in FAULTS), *MORE]:
        yield from faults(spec, has_bundle=lambda sha256: False)
    yield from faults({"run": "x"}, default_project="", projects={})
    yield from faults({"run": "x"}, default_project="")
    yield from faults({"run": "x", "priority": "hihg"}, may_number=True, pools={})
    yield from faults({"run": "x"}, may_use=lambda pool, project: False)
    yield from faults({"run": "x"}, may_use_class=lambda found, project: False)
    two = {name: SimpleNamespace(name=name, default_limit_s=60, max_limit_s=60) for name in ("default", "night")}
    yield from faults({"run": "x"}, pools=two, may_use=lambda pool, project: pool.name == "night")
    named: list[Any] = [{"name": "A", "env": "SET"}, {"name": "A", "env": "B"}, {"name": "C", "env": "B"}]
    named += [{"name": "A", "env": "1x"}, "NONE"]
    yield from faults({"run": "x", "env": {"SET": "1"}, "secrets": named}, secrets=lambda project: ("A", "C"))
    with override("zh-hans"), pytest.raises(InvalidSpec) as caught:
        check_sizes([SimpleNamespace(array=range(10_001), size=0, depends_on=())])  # type: ignore[list-item]
    yield str(caught.value)


def templates(*modules: str) -> Iterator[str]:
    """The sentences of these modules, as the translators see them."""
    for path in (JOBS / f"{module}.py" for module in modules):
        for one in ast.walk(ast.parse(path.read_text())):
            match one:
                case ast.Call(func=ast.Name(id="_" | "gettext_noop"), args=[ast.Constant(value=str(text))]):
                    yield text


def told_in(form: str, said: str) -> bool:
    pieces = re.split(r"\{\w+(?::,)?\}", form)
    return re.search(".*".join(map(re.escape, pieces)), said) is not None


def test_the_judge_of_these_tests_sees_what_is_not_translated() -> None:
    with pytest.raises(InvalidSpec) as caught:
        resolve({"run": "x", "cpus": "lots", "hold": 3}, rules())
    assert [bad(fault.detail) for fault in caught.value.errors] == [True, True]
    assert not bad('/cpus：cpus 必须是 0.01 到 4096 之间的数，而不是 "a lot of them"')


@pytest.mark.parametrize("spec", [*(spec for spec, _, _ in FAULTS), *MORE], ids=lambda spec: str(spec)[:60])
def test_the_faults_of_a_job_file_are_told_in_chinese(spec: Any) -> None:
    assert [each for each in faults(spec, has_bundle=lambda sha256: False) if bad(each)] == []


def test_each_sentence_of_the_readers_is_among_them_with_its_values() -> None:
    """A sentence that no file here provokes could be in any language."""
    said = "\n".join(all_faults())
    with override("zh-hans"):
        said += "\n".join(detail for _, detail in with_hints().warnings)
        said += "\n".join(stage["why"] for stage in without_devices().plain()["stages"])
        forms = {text: gettext(text) for text in templates(*READERS)}
    assert [text for text, form in forms.items() if not told_in(form, said)] == []


def without_devices() -> Resolved:
    kinds = [{"name": "a", "kind": "extract"}, {"name": "b", "kind": "infer", "task": "detection"}]
    return accepted({"run": "x", "stages": kinds})


def with_hints() -> Resolved:
    return accepted({"run": "x", "checkpoint": {"framework": "torch", "interval_hint": "5m"}})


def test_english_stays_what_it_is_where_nobody_asks_otherwise() -> None:
    assert values.nearest("devise", ["devices", "env"]) == "did you mean devices?"
    with override("zh-hans"):
        assert values.nearest("x", ["devices", "env"]) == "可用的有 devices、env"
        assert values.nearest("x", []) == "没有可用的"


def test_a_refused_job_file_is_answered_in_the_language_of_the_request(town: Town) -> None:
    town.machine()
    answer = json.loads(town.owner.post("/jobs", {"run": "x", "cpus": "lots"}, **CHINESE).content)
    assert answer["detail"] == '/cpus：cpus 必须是 0.01 到 4096 之间的数，而不是 "lots"'
    assert answer["errors"][0]["detail"] == 'cpus 必须是 0.01 到 4096 之间的数，而不是 "lots"'
    answer = json.loads(town.owner.post("/jobs", {"run": "x", "cpus": "lots"}).content)
    assert answer["errors"][0]["detail"] == 'cpus must be a number from 0.01 to 4096, not "lots"'
    body = {"run": "x", "checkpoint": {"framework": "torch"}}
    answer = json.loads(town.owner.post("/jobs?dry_run=validate", body, **CHINESE).content)
    assert [each["detail"] for each in answer["warnings"] if bad(each["detail"])] == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"devices": {"kind": "gpu", "count": 9}},
            "阶段 main 永远无法启动：资源池 default 中没有节点具备 9 gpu · 1 核 1 GiB；资源池 default 的设备：1 × cpu",
        ),
        ({"devices": {"kind": "gpu"}, "nodes": 4}, "阶段 main 永远无法启动：需要 4 节点，各 1 gpu"),
        ({"avoid": ["n1"]}, "阶段 main 永远无法启动：避开 n1；其余节点中有 0 个可用，而它需要 1 个；"),
        (
            {"only_on": [{"rack": "r9"}]},
            "阶段 main 永远无法启动：只在具备 rack=r9 的节点上运行；其中有 0 个可用，而它需要 1 个；",
        ),
        ({"site": "berlin"}, "阶段 main 永远无法启动：其数据不可离开 berlin；"),
        ({"pool": "empty"}, "资源池 empty 的设备：尚无"),
    ],
)
def test_what_can_never_start_is_told_in_chinese(town: Town, spec: dict[str, Any], says: str) -> None:
    town.machine()
    Pool.objects.create(name="empty")
    answer = town.owner.post("/jobs", {"run": "x", **spec}, **CHINESE)
    assert answer.status_code == 422
    (fault,) = json.loads(answer.content)["errors"]
    assert says in fault["detail"]
    assert not bad(fault["detail"])
    answer = town.owner.post("/jobs?dry_run=placement", {"run": "x", **spec}, **CHINESE)
    assert says in json.loads(answer.content)["refused"][0]["detail"]


@pytest.mark.parametrize(
    ("divisions", "profile", "says"),
    [
        ([None], "3g.40gb", "；其中没有已切分的设备"),
        ([MADE], "7g.80gb", "；分区有 2 × 1g.10gb、1 × 3g.40gb"),
        (
            [MAKES],
            "7g.80gb",
            "；其中没有已切分的设备；若管理员允许（资源池 default 的 repartition），有 1 个可这样切分",
        ),
    ],
)
def test_what_there_is_of_partitions_is_told_in_chinese(
    town: Town, divisions: list[Any], profile: str, says: str
) -> None:
    node(town, *divisions)
    answer = town.owner.post("/jobs", {"run": "x", "devices": {"partition": profile}}, **CHINESE)
    (fault,) = json.loads(answer.content)["errors"]
    assert fault["detail"].endswith(says)
    assert not bad(fault["detail"])


def test_an_adjustment_is_refused_in_chinese(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    attempt = Attempt.objects.get()
    said: list[str] = []

    def refused(**given: Any) -> None:
        with override("zh-hans"), pytest.raises(Unadjustable) as caught:
            adjust(attempt.id, "owner", **given)
        said.append(str(caught.value))

    refused()
    for name, value in (
        ("cpu_wieght", 3), ("nothing", 1), ("cpu_weight", "much"), ("cpus", []), ("suspended", "yes"),
        ("queue_class", "fast"), ("quantum_s", 0), ("ranks", [7]),
    ):  # fmt: skip
        refused(**{"suspended": True, name: value})
    Attempt.objects.update(stop_why="PREEMPTED")
    refused(suspended=True)
    Attempt.objects.update(stop_why="")
    attempt.parts.update(phase=Phase.STOPPING)
    refused(suspended=True, ranks=[0])
    agent.end(stage(job))
    refused(suspended=True)
    assert [each for each in said if bad(each)] == []
    with override("zh-hans"):
        assert [text for text in templates("adjust") if not told_in(gettext(text), "\n".join(said))] == []


def test_what_the_administration_cancels_is_told_in_the_language_of_the_reader(town: Town) -> None:
    town.machine()
    job = town.job(hold=True)
    service.cancel(job, "ada", told(clause("InAdministration")))
    assert Stage.objects.get().detail == "from the administration"
    assert job.events.get(kind="cancel").text == f"ada cancelled #{job.number} job: from the administration"
    check(town.owner, f"/jobs/{job.number}", f"ada 取消了 #{job.number} job：来自管理后台")
