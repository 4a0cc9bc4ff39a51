"""The pages as a reader without scripts gets them: what they say, what they keep to themselves, and signing in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from controlplane.accounts import service
from controlplane.accounts.models import User
from controlplane.clauses import in_words
from controlplane.fleet.models import Device, DeviceSample, Node
from controlplane.jobs import basis, funnel
from controlplane.jobs.models import Job, Part, PartLog
from controlplane.jobs.reasons import reason_text
from controlplane.pages.job import TABS
from controlplane.pages.shell import PLACES
from controlplane.queries.attention import FORMS
from controlplane.queries.words import (
    ACTS,
    CHANGES,
    REASONS,
    funnel_text,
)
from scheduler.core.model.basis import Basis
from scheduler.core.model.clauses import spoken
from scheduler.core.model.funnel import Filter
from scheduler.core.model.reasons import CATALOGUE
from scheduler.core.model.types import Alternative, Ask
from scheduler.core.world import request_class
from tests.controlplane.people import Person, Town, write_log
from tests.record.yard import stage

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
PASSWORD = "a-long-password-for-tests"
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture(autouse=True)
def forget_failures() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def browser(person: Person) -> Client:
    """A signed-in browser of this person."""
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


def text(client: Client, path: str, status: int = 200, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == status, (path, answer.status_code)
    return answer.content.decode()


def every_tab(client: Client, number: int, **headers: str) -> str:
    """All tabs of a job's page, one after another."""
    return "".join(text(client, f"/jobs/{number}{'' if tab == TABS[0] else f'/{tab}'}", **headers) for tab in TABS)


def test_every_place_of_the_navigation_is_a_page(town: Town) -> None:
    client = browser(town.owner)
    for place in PLACES:
        assert f'<a href="{place.path}" data-go="{place.key}" aria-current="page">' in text(client, place.path)


def test_pages_of_an_empty_yard_say_what_to_do_next(town: Town) -> None:
    client = browser(town.owner)
    assert "Register a node" in text(client, "/")
    assert "No job yet" in text(client, "/jobs")
    assert "No job matches these filters" in text(client, "/jobs?state=FAILED")
    assert "No node has joined yet" in text(client, "/nodes")
    assert "No device to show" in text(client, "/timeline")


def test_a_running_job_is_told_with_its_place_and_its_log(town: Town) -> None:
    job = town.running(town.machine(), name="train-me", devices={"kind": "gpu"}, time_limit="2h")
    write_log(job, ("out", b"step 1\n"), ("err", b"careful\n"), ("out", b"step 2\n"))
    page = text(browser(town.owner), f"/jobs/{job.number}")
    assert "train-me" in page
    assert "RUNNING" in page
    assert "n1" in page
    raw = browser(town.owner).get(f"/jobs/{job.number}/log?stage=main&attempt=1&rank=0&stream=both")
    assert b"".join(raw.streaming_content) == b"step 1\ncareful\nstep 2\n"  # type: ignore[attr-defined]
    assert raw["Content-Disposition"].startswith("attachment")
    only = browser(town.owner).get(f"/jobs/{job.number}/log?stage=main&attempt=1&rank=0&stream=err")
    assert b"".join(only.streaming_content) == b"careful\n"  # type: ignore[attr-defined]


def test_the_last_lines_of_a_log_are_in_its_page_for_a_browser_without_scripts(town: Town) -> None:
    job = town.running(town.machine())
    client, path = browser(town.owner), f"/jobs/{job.number}/logs"
    assert "<noscript>" in text(client, path), "nothing was printed yet"
    write_log(job, ("out", b"\x1b[31mstep\x1b[0m 1 <b>\n"))
    assert "step 1 &lt;b&gt;" in text(client, path)
    assert "step 1 &lt;b&gt;" in text(client, f"{path}?log=main|1|0|both")
    assert "step 1 &lt;b&gt;" in text(client, f"{path}?log=no|such|log"), "a wrong name is the newest one"
    part = Part.objects.get(attempt__stage__job=job)
    PartLog.objects.update_or_create(part=part, defaults={"gone_at": timezone.now()})
    page = text(client, path)
    assert "this log was removed on" in page
    assert "step 1 &lt;b&gt;" not in page


def test_a_tab_of_a_job_has_an_address_and_says_that_it_is_open(town: Town) -> None:
    job = town.running(town.machine())
    client = browser(town.owner)
    for tab in TABS:
        path = f"/jobs/{job.number}{'' if tab == TABS[0] else f'/{tab}'}"
        assert re.findall(r'<a href="(/jobs/[^"]*)" aria-current="page"', text(client, path)) == [path]
    text(client, f"/jobs/{job.number}/elsewhere", 404)
    page = text(client, f"/jobs/{job.number}/metrics?range=6h&metric=power")
    assert 'metrics?since_s=21600" data-measure="power"' in page
    page = text(client, f"/jobs/{job.number}/metrics?range=forever&metric=%3Cimg%3E")
    assert 'metrics?since_s=900" data-measure="utilisation"' in page


def test_who_may_not_see_a_job_is_told_that_there_is_none(town: Town) -> None:
    town.machine()
    job = town.job(name="private-thing")
    tabs = [f"/jobs/{job.number}", *(f"/jobs/{job.number}/{tab}" for tab in TABS[1:])]
    for path in (*tabs, f"/jobs/{job.number}/log?stage=main&attempt=1&rank=0&stream=out"):
        text(browser(town.stranger), path, 404)
    assert "private-thing" not in text(browser(town.stranger), "/jobs")
    assert "private-thing" not in text(browser(town.stranger), f"/jobs/new?from={job.number}")
    assert "private-thing" in text(browser(town.mate), f"/jobs/new?from={job.number}")


def test_who_is_not_signed_in_is_asked_to_be(town: Town) -> None:
    town.machine()
    job = town.job()
    for path in ("/", "/jobs", f"/jobs/{job.number}", "/timeline", "/nodes", "/jobs/new"):
        answer = Client().get(path)
        assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/sign-in"), path


def test_markup_from_outside_stays_text(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    Job.objects.filter(pk=job.pk).update(name=HOSTILE, labels={"note": HOSTILE})
    Node.objects.filter(name="n1").update(reason=HOSTILE, conditions={"notes": [HOSTILE]}, runs_as=HOSTILE)
    client = browser(town.owner)
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job.number}",
        "/timeline",
        "/nodes",
        "/nodes/n1",
        f"/jobs/new?from={job.number}",
    ):
        assert "<img" not in text(client, path), path
    everything = every_tab(client, job.number)
    assert "&lt;img src=x" in everything
    assert "<img" not in everything


def test_the_live_part_alone_is_a_part_of_the_whole_page(town: Town) -> None:
    job = town.running(town.machine())
    client = browser(town.owner)
    for path in ("/", "/jobs", f"/jobs/{job.number}", "/timeline", "/nodes", "/nodes/n1"):
        part = text(client, path, **{"X-Yard-Part": "live"})
        assert part.lstrip().startswith('<div class="y-live-part"'), path
        assert "<html" not in part
        whole = text(client, path)
        assert re.findall(r"<h2>(.*?)</h2>", part)[0] in whole if "<h2>" in part else True


def test_a_page_names_the_paths_that_it_watches(town: Town) -> None:
    town.machine()
    job = town.job()
    lists = ("/jobs?state=waiting&q=job", "/nodes?pool=default", "/decisions?did=wait", "/simulations")
    for path in (f"/jobs/{job.number}", "/nodes/n1", "/profiles", "/profiles/hybrid", *lists):
        page = text(browser(town.owner), path)
        found = re.search(r'<script id="yard-topics" type="application/json">(.*?)</script>', page)
        assert found
        for watched in json.loads(found[1]):
            # A tab that has what the API answers now is told of changes only.
            now = town.owner.get(watched["topic"].removeprefix("/api/v1"))["ETag"]
            assert watched["etag"] in {now, ""}, (path, watched)


def test_the_policy_allows_neither_scripts_nor_styles_within_a_page(town: Town) -> None:
    answer = browser(town.owner).get("/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self';" in policy + ";"
    assert "unsafe-eval" not in policy
    page = answer.content.decode()
    assert not re.search(r"<script(?![^>]*(src=|type=\"application/json\"))", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=\"", page)


def test_signing_in_leads_to_no_other_site(town: Town) -> None:
    User.objects.create_user("visitor", password=PASSWORD)
    for wanted in ("https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"):
        answer = Client().post("/sign-in", {"username": "visitor", "password": PASSWORD, "next": wanted})
        assert answer["Location"] == "/"


def test_a_link_signs_in_once_and_a_look_ahead_does_not_use_it_up(town: Town) -> None:
    assert town.owner.user is not None
    path = service.make_sign_in_link(town.owner.user)
    assert Client().head(path).status_code == 405
    for _ in range(3):  # scanners of mail, and browsers that fetch ahead
        looked = Client().get(path)
        assert (looked.status_code, "_auth_user_id" in looked.client.session) == (200, False)
        assert "owner" in looked.content.decode()
    client = Client(enforce_csrf_checks=True)
    assert client.post(path).status_code == 403
    client = Client()
    client.get(path)
    assert client.post(path)["Location"] == "/"
    assert "owner" in text(client, "/")
    again = Client().get(path)
    assert again.status_code == 410
    assert "used or expired" in again.content.decode()


def test_a_page_that_is_not_there_says_so(town: Town) -> None:
    page = text(browser(town.owner), "/no/such/page", 404)
    assert "Not found" in page
    assert "There is no page at this address" in page
    assert "404</p>" not in page, "not the name of a class of Python"
    assert "There is no job #4711" in text(browser(town.owner), "/jobs/4711", 404)
    text(browser(town.owner), "/nodes/nowhere", 404)


def test_a_device_has_a_page_that_tells_who_held_it(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent, name="holds-it", devices={"kind": "gpu"})
    (device,) = [one for one in town.owner.read("/devices?kind=gpu")["results"] if one["claims"]]
    path = f"/devices/{device['uuid']}"
    assert f'href="{path}"' in text(browser(town.owner), "/nodes/n1")
    page = text(browser(town.owner), path)
    assert "holds-it" in page
    assert "Not measured in this time." in page
    agent.end(stage(job))
    (claim,) = town.owner.read(f"{path}/claims")["results"]
    assert (claim["job"], claim["stage"], claim["attempt"], claim["milli"]) == (job.number, "main", 1, 1000)
    assert claim["closed_at"] is not None
    (claim,) = town.stranger.read(f"{path}/claims")["results"]
    assert (claim["job"], claim["name"], claim["user"], claim["milli"]) == (None, None, None, 1000)
    page = text(browser(town.stranger), path)
    assert "holds-it" not in page
    assert "another project" in page
    row = Device.objects.get(uuid=device["uuid"])
    now = timezone.now()
    DeviceSample.objects.create(device=row, at=now, utilisation=0.5, power_w=300.0)
    measured = town.owner.read(f"{path}/metrics?since_s=60")
    assert [value for value in measured["power_w"] if value is not None] == [300.0]
    assert set(measured["temperature_c"]) == {None}
    assert len(measured["at"]) == len(measured["power_w"]) <= 300
    assert town.owner.get(f"{path}/metrics?since_s=0").status_code == 400
    page = text(browser(town.owner), path)
    assert 'id="chart-power_w"' in page
    assert 'id="chart-temperature_c"' not in page
    text(browser(town.owner), "/devices/nothing", 404)


def test_a_model_tells_what_it_declares_and_what_is_not_known_is_said_to_be_unknown(town: Town) -> None:
    agent = town.machine("n1")
    town.machine("n2")
    Device.objects.filter(kind="gpu").update(features={})
    (gpu, cpu) = town.owner.read("/hardware")["results"]
    assert (gpu["kind"], gpu["count"], gpu["free"], gpu["nodes"], cpu["kind"]) == ("gpu", 4, 4, 2, "cpu")
    assert (gpu["rates"], gpu["memory_gbps"], gpu["watts"], gpu["per_watt"]) == ({}, None, None, {})
    assert not any(one["is_declared"] for one in gpu["speeds"])
    assert "unknown" in text(browser(town.owner), "/hardware")
    features = {"bf16_tflops": 624.0, "int8_tops": 1000.0, "memory_gbps": 4078.0, "watts": 500.0}
    Device.objects.filter(kind="gpu").update(features=features)
    town.running(agent, devices={"kind": "gpu"})
    (gpu, _cpu) = town.owner.read("/hardware")["results"]
    assert (gpu["count"], gpu["free"]) == (4, 3)
    assert gpu["per_watt"] == {"bf16_tflops": 1.248, "int8_tops": 2.0}
    speeds = {one["kind"]: (one["speed"], one["is_declared"], one["suits"]) for one in gpu["speeds"]}
    assert speeds["train"] == (2.0, True, True)
    assert speeds["serve"] == (2.0, True, True), "it waits for memory"
    assert speeds["extract"][1] is False
    page = text(browser(town.owner), "/hardware")
    for word in ("bf16 624 TFLOPS", "1.25 TFLOPS/W", "2 TOPS/W", "3 / 4"):
        assert word in re.sub(r"<[^>]+>", "", page), word


def test_a_file_is_read_as_the_api_reads_it(town: Town) -> None:
    client = browser(town.owner)

    def parse(body: str) -> tuple[int, dict[str, object]]:
        answer = client.post("/jobs/new/parse", body, content_type="application/yaml")
        return answer.status_code, answer.json()

    assert parse("name: a\nrun: echo on\n") == (200, {"spec": {"name": "a", "run": "echo on"}, "draft": None})
    for wrong in ("a: [", "a: &x 1\nb: *x\n", "- 1\n", "a: 1\na: 2\n"):
        status, answer = parse(wrong)
        assert (status, set(answer)) == (400, {"detail"})


def test_the_language_follows_the_reader(town: Town) -> None:
    client = browser(town.owner)
    assert '<html lang="zh-hans"' in text(client, "/jobs", **{"Accept-Language": "zh-CN"})
    assert "作业" in text(client, "/jobs", **{"Accept-Language": "zh-CN"})
    client.post("/language", {"language": "zh-hans", "next": "/jobs"})
    assert "提交作业" in text(client, "/jobs")


def test_every_reason_has_its_chinese() -> None:
    assert set(REASONS) == {entry.template for entry in CATALOGUE}
    entries = _entries("django")
    assert set(REASONS) | set(CHANGES) <= set(entries)
    assert set(ACTS) <= set(entries)
    assert {entry.acts for entry in CATALOGUE} - {"nobody"} <= set(ACTS)
    signs = {text for form in FORMS.values() for text in (form.title, form.detail, form.action) if text}
    assert signs <= set(entries)


def test_every_sentence_of_a_script_has_its_chinese(client: Client) -> None:
    entries = _entries("djangojs")
    scripts = "\n".join(path.read_text() for path in (FRONTEND / "static/yard").glob("*.js"))
    assert set(re.findall(r'\bt\("([^"]+)"', scripts)) <= set(entries)
    counted = set(re.findall(r'\btn\([^"]+, "([^"]+)", "([^"]+)"', scripts))
    assert len(counted) == len(re.findall(r"\btn\(", scripts))
    assert {one for one, _ in counted} <= set(entries)
    catalogue = (FRONTEND / "locale/zh_Hans/LC_MESSAGES/djangojs.po").read_text()
    assert [one for one, many in counted if f'msgid "{one}"\nmsgid_plural "{many}"\n' not in catalogue] == []
    assert [key for key in entries if f'"{key}"' not in scripts] == [], "words that no script says"
    words = client.get("/words.js", headers={"Accept-Language": "zh-CN"})
    assert json.dumps(entries["Polling {n} s"]) in words.content.decode(), "as Django's catalogue gives it to a page"
    again = client.get("/words.js", headers={"Accept-Language": "zh-CN", "If-None-Match": words["ETag"]})
    assert again.status_code == 304
    assert "轮询" not in client.get("/words.js", headers={"Accept-Language": "en"}).content.decode()


def _entries(domain: str) -> dict[str, str]:
    """What a catalogue translates, each with all that its sentence has in braces."""
    catalogue = (FRONTEND / f"locale/zh_Hans/LC_MESSAGES/{domain}.po").read_text()
    entries = dict(re.findall(r'^msgid "(.+)"\n(?:msgid_plural .*\n)?msgstr(?:\[0\])? "(.*)"', catalogue, re.MULTILINE))
    assert [key for key, value in entries.items() if not value] == []
    for key, value in entries.items():
        assert set(re.findall(r"\{\w+\}|%\(\w+\)s", value)) == set(re.findall(r"\{\w+\}|%\(\w+\)s", key)), key
    return entries


def cpu(milli: int, memory_bytes: int = 0) -> Ask:
    return Ask("cpu", milli=milli, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("ways", "nodes", "english", "chinese"),
    [
        ([[cpu(1000)]], 1, "1 core", "1 核"),
        (
            [[Ask("gpu", 8, model="H100"), cpu(8000, 64 * 2**30)], [cpu(1000)]],
            2,
            "2 nodes with 8 gpu H100 · 8 cores 64 GiB, or 1 core",
            "2 节点，各 8 gpu H100 · 8 核 64 GiB 或 1 核",
        ),
        (
            [[Ask("gpu", milli=500, memory_bytes=2**30, sharing="hard"), cpu(500)]],
            1,
            "1 gpu x 500/1000 held hard 1 GiB · 0.5 cores",
            "1 gpu × 500/1000（hard 隔离） 1 GiB · 0.5 核",
        ),
    ],
)
def test_what_the_engine_says_of_a_demand_is_told_in_the_readers_language(
    ways: list[list[Ask]], nodes: int, english: str, chinese: str
) -> None:
    said = request_class.demand([Alternative(i, tuple(asks)) for i, asks in enumerate(ways)], nodes)
    reason = {"code": "NoMatchingDevice", "text": f"x {english}", "params": {"pool": "p", **spoken(asks=said)}}
    assert reason["params"]["asks"] == english  # type: ignore[index]
    with override("zh-hans"):
        assert reason_text(reason).endswith(chinese)


@pytest.mark.parametrize(
    ("code", "runs", "english", "chinese"),
    [
        (Basis.DECLARED, 0, "as declared", "按声明"),
        (Basis.OWN_RUNS, 1, "from 1 run of this stage", "依据此阶段的 1 次运行"),
        (
            Basis.OTHER_REQUESTS,
            12,
            "from 12 runs of this stage with another request",
            "依据此阶段以其他请求的 12 次运行",
        ),
        ("from 3 runs of this stage", 0, "from 3 runs of this stage", "from 3 runs of this stage"),
    ],
)
def test_what_a_forecast_rests_on_is_told_in_the_readers_language(
    code: str, runs: int, english: str, chinese: str
) -> None:
    told = basis.sentence(code, runs)
    assert told.text == english
    with override("zh-hans"):
        assert in_words(told.text, told.said) == chinese


def test_every_basis_has_its_words() -> None:
    for code in Basis:
        assert basis.sentence(code, 2).said


def test_the_filters_of_a_search_are_told_in_the_readers_language() -> None:
    waiting = funnel.plain([(code, 1) for code in Filter], "night")
    assert waiting["funnel"][:2] == [("nodes", 1), ("in pool night", 1)]
    assert funnel_text(waiting) == waiting["funnel"]
    with override("zh-hans"):
        words = [label for label, _ in funnel_text(waiting)]
    assert all(re.search("[\u4e00-\u9fff]", label) for label in words)
    assert "night" in words[1]
    old = funnel.plain([("some words of a former engine", 3)], "night")
    with override("zh-hans"):
        assert funnel_text(old) == [("some words of a former engine", 3)]


def test_vendored_files_are_what_the_lock_says() -> None:
    done = subprocess.run([sys.executable, ROOT / "script/vendor"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_of_the_face_is_loaded_from_elsewhere() -> None:
    own = [*FRONTEND.glob("templates/**/*.html"), *FRONTEND.glob("static/yard/*")]
    loads = re.compile(
        r"""(?:src|href|action)=["'](?:https?:)?//|url\(["']?(?:https?:)?//|(?:import|fetch)\(?\s*["'](?:https?:)?//"""
    )
    assert [path.name for path in own if loads.search(path.read_text())] == []
    plotly = [path for path in FRONTEND.glob("static/yard/*.js") if re.search(r"\bPlotly\.", path.read_text())]
    assert [path.name for path in plotly] == ["charts.js"]


def test_a_node_whose_stages_are_root_is_told_in_red(town: Town) -> None:
    town.machine()
    for path, words in (("/nodes", "stages run as root"), ("/nodes/n1", "any job can do anything to this machine")):
        assert words not in text(browser(town.owner), path)
        Node.objects.filter(name="n1").update(runs_as="root")
        found = re.search(r"y-badt[^>]*>[^<]*" + words, text(browser(town.owner), path))
        assert found is not None, path
        Node.objects.filter(name="n1").update(runs_as="nobody")
