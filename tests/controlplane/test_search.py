"""Search: what is found by name or number, by whom, and what the palette offers of pages and actions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.accounts import roles
from controlplane.accounts.models import Member, Project, User
from controlplane.queries import search
from tests.controlplane.people import Person, Town


def names(person: Person, words: str, kind: str = "") -> list[str]:
    found = person.client.get("/api/v1/search", {"q": words})
    assert found.status_code == 200, found.content
    return [one["name"] for one in json.loads(found.content)["results"] if not kind or one["kind"] == kind]


def offered(user: User, words: str, **headers: str) -> list[tuple[str, str]]:
    """Name and path of each option of the palette."""
    client = Client()
    client.force_login(user)
    answer = client.get("/search", {"q": words}, headers={"X-Yard-Part": "palette", **headers})
    assert answer.status_code == 200
    return [(row["name"], row["path"]) for group in answer.context["groups"] for row in group["rows"]]


def test_jobs_are_found_by_number_and_by_name_by_those_who_may_see_them(town: Town) -> None:
    town.machine()
    job = town.job(name="资产-Llama")
    for person in (town.owner, town.mate, town.viewer, town.staff):
        for words in (str(job.number), f"#{job.number}", "llama", "资产"):
            assert names(person, words, "job") == ["资产-Llama"], words
    for words in (str(job.number), "llama", "资产"):
        assert names(town.stranger, words, "job") == []
    assert town.anonymous.get("/search?q=x").status_code == 401


def test_an_array_is_one_line_and_its_element_is_found_by_its_place(town: Town) -> None:
    town.machine()
    answer = town.owner.post("/jobs", {"name": "sweep", "run": "true", "array": {"indexes": "0-2"}})
    number = json.loads(answer.content)["number"]
    found = json.loads(town.owner.get("/search?q=sweep").content)["results"]
    assert [(one["kind"], one["path"]) for one in found] == [("array", f"/arrays/{number}")]
    assert names(town.owner, str(number))[0] == "sweep"
    assert names(town.owner, f"{number}_1", "job") == ["sweep"]
    assert names(town.stranger, f"{number}_1") == names(town.stranger, str(number)) == []


def test_names_are_compared_among_the_newest_jobs_only(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.machine()
    old, new = town.job(name="same-old"), town.job(name="same-new")
    monkeypatch.setattr(search, "NEWEST_JOBS", 1)
    assert names(town.owner, "same", "job") == ["same-new"]
    assert names(town.owner, str(old.number), "job") == ["same-old"]
    monkeypatch.setattr(search, "NEWEST_JOBS", 2)
    assert names(town.owner, "SAME", "job") == ["same-new", "same-old"]
    assert new.number > old.number


def test_elements_of_arrays_hide_no_ordinary_job_and_no_other_array(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.machine()
    monkeypatch.setattr(search, "NEWEST_JOBS", 2)
    town.job(name="same-job")
    for name in ("same-swept", "other"):
        town.owner.post("/jobs", {"name": name, "run": "true", "array": {"indexes": "0-4"}})
    assert names(town.owner, "same") == ["same-job", "same-swept"]
    town.owner.post("/jobs", {"name": "last", "run": "true", "array": {"indexes": "0"}})
    assert names(town.owner, "same") == ["same-job"]


def test_a_search_reads_as_much_however_many_jobs_there_are(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 22,000 jobs, of which most are elements of arrays, those of the window are read from an index."""
    town.machine()
    first = town.job(name="needle")
    monkeypatch.setattr(search, "NEWEST_JOBS", 50)
    assert isinstance(town.owner.user, User)
    few = read_for(town.owner.user)
    answer = town.owner.post("/jobs", {"name": "swept", "run": "true", "array": {"indexes": "0"}})
    array = json.loads(answer.content)["number"]
    with transaction.atomic():
        with connection.cursor() as cursor:
            for begin, end, of, name in ((0, 2000, None, "ordinary"), (2000, 22_000, array, "element")):
                asked = {"of": first.number, "from": 10**6 + begin, "to": 10**6 + end - 1, "array": of, "name": name}
                cursor.execute(_COPIES, asked)
            cursor.execute("ANALYZE jobs_job")
        for words, count in (("needle", 0), ("element", 0), ("ordinary", 6)):
            assert len(search.search(town.owner.user, words).results) == count
        assert read_for(town.owner.user) <= few + 2 * (50 + 1), "those of the window, and where it begins"
        # They are no jobs that this cluster could have made.
        transaction.set_rollback(True)


# Copies of a job under other numbers; of an array they are its elements.
_COPIES = """
INSERT INTO jobs_job (id, number, name, project_id, user_id, pool_id, priority_class, priority, state, cause, spec,
                      labels, bundle, array_id, array_index, submitted_at, event_seq, events_gone, version)
SELECT gen_random_uuid(), n, %(name)s, project_id, user_id, pool_id, priority_class, priority, 'COMPLETED', '', spec,
       labels, '', %(array)s::bigint, CASE WHEN %(array)s::bigint IS NOT NULL THEN n END, submitted_at, 0, 0, 1
FROM jobs_job, generate_series(%(from)s, %(to)s) n WHERE number = %(of)s
"""


def read_for(user: User) -> int:
    """How many rows the queries for jobs and arrays of one search read from their tables and indexes."""
    with CaptureQueriesContext(connection) as asked:
        search.search(user, "no such name")
    texts = [one["sql"] for one in asked if 'FROM "jobs_' in one["sql"]]
    assert len(texts) == 2, texts
    read = 0
    for text in texts:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}")
            plans = [
                json.loads(found)[0]["Plan"] if isinstance(found, str) else found[0]["Plan"] for (found,) in cursor
            ]
        while plans:
            plan = plans.pop()
            plans += plan.get("Plans", [])
            if "Scan" in plan["Node Type"]:
                gone = plan.get("Rows Removed by Filter", 0)
                read += int((plan["Actual Rows"] + gone) * plan["Actual Loops"])
    return read


@pytest.mark.parametrize("words", ["n1", "n1:0", "n1 gpu0", "GPU-n1-0", "gpu-N1-0"])
def test_machines_are_everybodys(town: Town, words: str) -> None:
    town.machine()
    town.machine("n10")
    found = json.loads(town.stranger.client.get("/api/v1/search", {"q": words}).content)["results"]
    kinds = {one["kind"] for one in found}
    if words == "n1":
        assert [one["name"] for one in found if one["kind"] == "node"] == ["n1", "n10"]
    else:
        assert kinds == {"device"}
        assert [one["path"] for one in found] == ["/devices/GPU-n1-0"]


def test_projects_and_people_are_those_one_shares_a_project_with(town: Town) -> None:
    assert names(town.owner, "default", "project") == ["default"]
    assert names(town.stranger, "default", "project") == []
    assert names(town.mate, "own", "user") == ["owner"]
    assert names(town.stranger, "own", "user") == []
    assert names(town.stranger, "stranger", "user") == ["stranger"]
    assert "owner" in names(town.staff, "own", "user")
    other = Project.objects.get(name="other")
    Member.objects.create(project=other, user=town.owner.user, role="viewer")
    assert names(town.stranger, "own", "user") == ["owner"]


def test_people_whose_user_name_begins_so_come_first(town: Town) -> None:
    for name, own in (("zoe", "Abe"), ("crab", ""), ("abe", ""), ("abel", "")):
        User.objects.create(username=name, first_name=own)
    assert names(town.staff, "ab", "user") == ["abe", "abel", "crab", "zoe"]


@pytest.mark.parametrize(
    ("asked", "field"), [({}, "q"), ({"q": "x" * 101}, "q"), ({"q": "x", "limit": 51}, "limit"), ({"q": "\0"}, "q")]
)
def test_what_is_asked_is_bounded(town: Town, asked: dict[str, Any], field: str) -> None:
    answer = town.owner.client.get("/api/v1/search", asked)
    assert answer.status_code == 400
    assert field in answer.content.decode()


def test_wild_cards_are_letters_and_each_kind_has_its_bound(town: Town) -> None:
    town.machine()
    for at in range(9):
        town.job(name=f"many-{at}")
    assert names(town.owner, "%") == names(town.owner, "_any") == []
    assert len(names(town.owner, "many", "job")) == 6
    assert len(json.loads(town.owner.get("/search?q=many&limit=8").content)["results"]) == 8


def test_a_search_asks_few_questions_however_many_are_found(town: Town) -> None:
    for at in range(6):
        town.machine(f"node{at}")
        town.job(name=f"node-job{at}")
    assert isinstance(town.owner.user, User)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        search.search(town.owner.user, "node")
    assert len(asked) <= 16, [one["sql"][:90] for one in asked]


def test_the_palette_offers_pages_and_what_one_may_do(town: Town) -> None:
    town.machine()
    job = town.job(name="mine")
    roles.install(Group, Permission)
    operator = User.objects.create(username="op")
    operator.groups.add(Group.objects.get(name="operator"))
    owner = town.owner.user
    assert isinstance(owner, User)
    everything = dict(offered(owner, ""))
    assert everything["Queue"] == "/queue"
    assert everything["Submit a job"] == "/jobs/new"
    assert "Audit log" not in everything
    assert "Admin" not in everything
    assert "Plan maintenance" not in everything
    assert dict(offered(operator, "maint")) == {"Plan maintenance": "/calendar/new/maintenance"}
    for words in ("n1", "drain n1"):
        assert ("Drain n1…", "/nodes/n1#ask-drain") in offered(operator, words)
        assert not any("Drain" in name for name, _path in offered(owner, words))
    cancel = (f"Cancel job #{job.number}…", f"/jobs/{job.number}#ask-cancel")
    assert cancel in offered(owner, f"#{job.number}")
    viewer = town.viewer.user
    assert isinstance(viewer, User)
    assert cancel not in offered(viewer, str(job.number))


def test_pages_are_found_in_the_readers_language_and_in_english(town: Town) -> None:
    town.machine()
    owner = town.owner.user
    assert isinstance(owner, User)
    for words in ("队列", "queue"):
        assert ("队列", "/queue") in offered(owner, words, **{"Accept-Language": "zh-CN"})
    staff = town.user
    assert ("排空 n1…", "/nodes/n1#ask-drain") in offered(staff, "排空n1", **{"Accept-Language": "zh-CN"})


def test_the_page_of_results_needs_no_script(town: Town) -> None:
    town.machine()
    job = town.job(name="bold")
    client = Client()
    assert isinstance(town.owner.user, User)
    client.force_login(town.owner.user)
    text = client.get("/search", {"q": "bold"}).content.decode()
    assert f'href="/jobs/{job.number}"' in text
    text = client.get("/search", {"q": "<b>"}).content.decode()
    assert "&lt;b&gt;" in text
    assert "“<b>" not in text
    assert 'href="/search"' in client.get("/").content.decode()
    empty = client.get("/search", {"q": "no such thing"}).content.decode()
    assert "Nothing that you may see has that name" in empty
