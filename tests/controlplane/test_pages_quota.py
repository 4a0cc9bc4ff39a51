"""The page of quotas: whose rights it shows to whom, what is borrowed and lent, and its file for spreadsheets."""

from __future__ import annotations

import csv
import io

from controlplane.accounts.models import Project
from controlplane.pools.models import Budget, Limit, Quota
from tests.controlplane.people import Town
from tests.controlplane.test_pages import browser, text


def test_what_is_borrowed_is_lent_by_those_who_leave_something_unused(town: Town) -> None:
    other = Project.objects.get(name="other")
    third = Project.objects.create(name="third")
    for project, nominal, lends in ((town.project, 0.5, None), (other, 3, 1.0), (third, 2, None)):
        Quota.objects.create(project=project, kind="gpu", cohort="lab", nominal=nominal, lending_limit=lends)
    Quota.objects.create(project=third, kind="gpu", model="H100", cohort="lab", nominal=9)
    town.running(town.machine(), devices={"kind": "gpu", "count": 2})
    found = {(one["project"], one["model"]): one for one in town.staff.read("/quotas")["results"]}
    told = {key: (one["held"], one["borrowed"], one["lent"]) for key, one in found.items()}
    assert told == {
        ("default", ""): (2.0, 1.5, 0.0), ("other", ""): (0.0, 0.0, 0.5), ("third", ""): (0.0, 0.0, 1.0),
        ("third", "H100"): (0.0, 0.0, 0.0),
    }  # fmt: skip
    loan = {"project": "default", "amount": 1.0}
    assert found["third", ""]["lent_to"] == [loan]
    assert "1 to default" in text(browser(town.staff), "/quota")
    (others,) = town.stranger.read("/quotas")["results"]
    assert (others["lent"], others["lent_to"]) == (0.5, []), "a borrower whom one may not see has no name"
    (mine,) = town.owner.read("/quotas")["results"]
    assert mine["borrowed"] == 1.5, "others lend whether one sees them or not"
    page = text(browser(town.owner), "/quota")
    assert "used 2, borrowed 1.5, lent 0" in page
    assert "third" not in page
    assert ">2 / 2<" in page, "what the pool has"
    assert '<td data-label="您可以使用">是</td>' in text(browser(town.owner), "/quota", **{"Accept-Language": "zh-CN"})


def test_the_page_shows_budgets_and_limits_of_ones_projects_only(town: Town) -> None:
    other = Project.objects.get(name="other")
    Budget.objects.create(project=town.project, kind="gpu", hours=0, at_end="hold")
    Budget.objects.create(project=other, kind="npu", hours=4321)
    Limit.objects.create(project=other, running=77)
    Limit.objects.create(running=88)
    mine, theirs = text(browser(town.owner), "/quota"), text(browser(town.stranger), "/quota?project=other")
    assert ["used up" in mine, "4321" in mine or "4,321" in mine, "/ 77" in mine, "/ 88" in mine] == [
        True,
        False,
        False,
        True,
    ]
    assert ["4,321" in theirs, "/ 77" in theirs] == [True, True]
    assert "4,321" not in text(browser(town.owner), "/quota?project=other")


def test_who_may_use_what_is_told_in_chinese_too(town: Town) -> None:
    """A pair of words that a template splits at its comma needs that very comma in each language."""
    client = browser(town.owner)
    client.cookies["django_language"] = "zh-hans"
    page = text(client, "/quota")
    assert "您可以使用" in page
    assert ["True" in page, "是" in page] == [False, True]


def test_no_cell_of_the_file_is_a_formula(town: Town) -> None:
    for project in (town.project, Project.objects.get(name="other")):
        Quota.objects.create(project=project, kind="gpu", model="=cmd|'/C calc'!A0", nominal=1)
    Budget.objects.create(project=town.project, kind="gpu", hours=10, at_end="stop")
    Limit.objects.create(user=town.owner.user, running=3)
    answer = browser(town.owner).get("/quota.csv")
    assert answer["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [row["what"] for row in rows] == ["quota", "budget", "limit of running"]
    assert {row["project"] for row in rows} == {"default", ""}
    assert (rows[0]["model"], rows[0]["nominal"]) == ("'=cmd|'/C calc'!A0", "1")
    assert (rows[1]["limit"], rows[1]["at_end"], rows[2]["user"]) == ("10", "stop", "owner")
