"""Notices of ended jobs by mail: who is told of what, each end once, in digests, and nothing that is not theirs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import Member, User
from controlplane.jobs import service
from controlplane.jobs.models import Job
from controlplane.notifications import notices, tasks
from controlplane.notifications.models import Notice, NoticeChoice
from tests.controlplane import smtp_server
from tests.controlplane.people import Town
from tests.controlplane.smtp_server import Sink
from tests.record.yard import Agent

OWN = "owner@example.org"


@pytest.fixture
def mail(settings: Any) -> Iterator[Sink]:
    with smtp_server.sink() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "yard@example.org"
        yield server


@pytest.fixture
def agent(town: Town) -> Agent:
    return town.machine()


@pytest.fixture
def owner(town: Town, agent: Agent, mail: Sink) -> User:
    """Who wants to be told of all, at an address of their own."""
    user = town.owner.user
    assert user is not None
    EmailAddress.objects.create(user=user, email=OWN, verified=True, primary=True)
    notices.choose(user, "all", "en")
    return user


def cancelled(town: Town, **spec: Any) -> Job:
    job = town.job(**spec)
    assert town.owner.post(f"/jobs/{job.number}/cancel").status_code == 200
    return job


def later(minutes: float = 6) -> None:
    """Has what was taken been taken so long ago."""
    for one in Notice.objects.exclude(claimed_at=None):
        assert one.claimed_at is not None
        Notice.objects.filter(pk=one.pk).update(claimed_at=one.claimed_at - timedelta(minutes=minutes))


def test_the_end_of_a_job_is_told_once(town: Town, agent: Agent, owner: User, mail: Sink) -> None:
    job = town.running(agent, name="train", env={"HF_TOKEN": "hf_canary", "MODE": "hf_plain"}, run="echo hf_command")
    assert notices.send() == 0, "it runs"
    agent.end(job.stages.get(), 1)
    job.refresh_from_db()
    assert job.state == "FAILED"
    assert [notices.send() for _ in range(3)] == [1, 0, 0]
    later()
    assert notices.send() == 0
    (sent,) = mail.mails()
    assert (sent["To"], sent["From"]) == (OWN, "yard@example.org")
    assert sent["Subject"] == f"[yard] #{job.number} train: FAILED"
    assert (sent["Auto-Submitted"], sent["Message-ID"].endswith("@127.0.0.1>")) == ("auto-generated", True)
    text = sent.get_content()
    assert f"http://127.0.0.1:8470/jobs/{job.number}" in text
    assert "project default" in text
    assert "hf_" not in mail.taken[0].decode(), "nothing of its job file"


def test_who_chose_failures_is_told_of_failures_and_who_chose_nothing_of_nothing(
    town: Town, agent: Agent, owner: User, mail: Sink
) -> None:
    notices.choose(owner, "failed", "en")
    cancelled(town)
    town.mate.post("/jobs", {"run": "x"})
    town.mate.post(f"/jobs/{Job.objects.latest('number').number}/cancel")
    assert not Notice.objects.exists()
    agent.end(town.running(agent).stages.get(), 1)
    assert Notice.objects.count() == 1
    notices.choose(owner, "", "en")
    assert not Notice.objects.exists(), "whoever wants no more gets no more"
    cancelled(town)
    assert (notices.send(), mail.taken) == (0, [])


def test_an_end_that_is_undone_is_not_told(town: Town, owner: User) -> None:
    job = town.job()
    with transaction.atomic():
        Job.objects.filter(pk=job.pk).update(state="CANCELLED", ended_at=timezone.now())
        assert Notice.objects.count() == 1, "written with the end"
        transaction.set_rollback(True)
    assert not Notice.objects.exists()


def test_hundreds_that_end_within_a_minute_are_one_mail_of_ten(town: Town, owner: User, mail: Sink) -> None:
    assert (
        town.owner.post("/jobs/batch", {"jobs": [{"name": f"j{n}", "run": "x"} for n in range(300)]}).status_code == 201
    )
    jobs = list(Job.objects.order_by("number"))
    now = timezone.now()
    Job.objects.filter(pk=jobs[-1].pk).update(state="FAILED", cause="EXIT_CODE", ended_at=now)
    Job.objects.exclude(pk=jobs[-1].pk).update(state="CANCELLED", ended_at=now)
    assert notices.send() == 1
    (sent,) = mail.mails()
    assert sent["Subject"] == "[yard] 300 jobs have ended: 299 CANCELLED, 1 FAILED"
    text = sent.get_content()
    assert len(re.findall(r"^#\d+ ", text, re.MULTILINE)) == 10
    assert text.startswith(f"#{jobs[-1].number} j299"), "failures first"
    assert "FAILED (EXIT_CODE)" in text
    assert "and 290 more" in text
    assert "/jobs?user=owner" in text
    # What ends right afterwards waits for the next minute, and is one mail again.
    job = Job.objects.create(
        **{name: getattr(jobs[0], name) for name in ("project", "user", "pool", "priority_class", "priority", "spec")},
        number=10_000, name="late", submitted_at=timezone.now(),
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(state="CANCELLED", ended_at=timezone.now())
    assert notices.send() == 0
    later(1)
    assert notices.send() == 1
    # The invariants of the record want stages for a job.
    Job.objects.all().delete()
    assert not Notice.objects.exists(), "they go with their jobs"


def test_nobody_gets_more_than_so_many_mails_an_hour(town: Town, owner: User, mail: Sink) -> None:
    cancelled(town)
    now = timezone.now()
    for number in range(notices.MOST_AN_HOUR):
        job = cancelled(town)
        Notice.objects.filter(job=job).update(mail=f"00000000-0000-4000-8000-{number:012}", claimed_at=now, sent_at=now)
    later(2)
    assert notices.send() == 0
    later(60)
    assert notices.send() == 1


def test_a_mail_that_nobody_knows_of_is_sent_again_as_the_same_one(town: Town, owner: User, mail: Sink) -> None:
    """The server took it and died before it said so, as would a worker before it noted it."""
    job = cancelled(town)
    mail.is_cut_short = True
    assert notices.send() == 0
    mail.is_cut_short = False
    assert notices.send() == 0, "not before the worker that has it must be gone"
    cancelled(town)
    later()
    assert notices.send() == 1, "the one before, as it was"
    later(1)
    assert notices.send() == 1, "and the next one"
    first, again, other = mail.mails()
    assert first["Message-ID"] == again["Message-ID"] != other["Message-ID"]
    assert first.get_content() == again.get_content()
    assert f"#{job.number} " in again.get_content()
    later()
    assert notices.send() == 0


def test_a_server_that_is_away_costs_nothing_but_time(
    town: Town, owner: User, mail: Sink, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port = settings.EMAIL_PORT
    settings.EMAIL_PORT = 9
    settings.EMAIL_HOST_PASSWORD = "canary"
    cancelled(town)
    assert notices.send() == 0
    assert "takes no mail" in caplog.text
    assert "canary" not in caplog.text
    settings.EMAIL_PORT = port
    later()
    assert notices.send() == 1


def test_one_address_that_is_refused_holds_up_nobody(town: Town, owner: User, mail: Sink) -> None:
    mate = town.mate.user
    assert mate is not None
    EmailAddress.objects.create(user=mate, email="mate@example.org", verified=True, primary=True)
    notices.choose(mate, "all", "en")
    cancelled(town)
    town.mate.post("/jobs", {"run": "x"})
    town.mate.post(f"/jobs/{Job.objects.latest('number').number}/cancel")
    mail.refused[OWN] = "450 later"
    assert notices.send() == 1
    assert [each["To"] for each in mail.mails()] == ["mate@example.org"]
    assert Notice.objects.filter(user=owner, sent_at=None).count() == 1
    mail.refused[OWN] = "550 nobody here"
    later()
    assert notices.send() == 0
    assert not Notice.objects.filter(user=owner).exists(), "what will never be taken is not tried again"


@pytest.mark.parametrize("gone", ["address", "user", "mail server", "day"])
def test_who_cannot_be_told_is_not_told(town: Town, owner: User, mail: Sink, settings: Any, gone: str) -> None:
    cancelled(town)
    match gone:
        case "address":
            EmailAddress.objects.update(verified=False)
        case "user":
            User.objects.filter(pk=owner.pk).update(is_active=False)
        case "mail server":
            settings.EMAIL_HOST = ""
        case "day":
            Notice.objects.update(at=timezone.now() - timedelta(hours=25))
    assert (notices.send(), mail.taken) == (0, [])
    assert Notice.objects.exists() == (gone == "mail server")


def test_the_mail_is_in_the_language_and_zone_of_its_reader(town: Town, owner: User, mail: Sink) -> None:
    client = Client()
    client.force_login(owner)
    client.post("/language", {"language": "zh-hans"})
    assert client.post("/user/notices", {"ends": "all"})["Location"] == "/user?done=notices"
    client.post("/user/time-zone", {"time_zone": "Asia/Shanghai"})
    cancelled(town)
    notices.send()
    text = mail.mails()[0].get_content()
    assert "项目 default" in text
    assert re.search(r"\d\d:\d\d CST", text)


def test_a_name_writes_no_head_and_no_other_entry(town: Town, owner: User, mail: Sink) -> None:
    job = cancelled(town)
    Job.objects.filter(pk=job.pk).update(name="x\r\nBcc: victim@example.org\r\n\r\n<b>")
    notices.send()
    (sent,) = mail.mails()
    assert (sent["Bcc"], sent["To"]) == (None, OWN)
    assert "Bcc: victim@example.org" in sent["Subject"].replace("\n", "")
    assert [each for each in mail.commands if each == "RCPT"] == ["RCPT"]


def test_what_may_be_chosen_on_the_page(town: Town, mail: Sink) -> None:
    user = town.owner.user
    assert user is not None
    client = Client()
    client.force_login(user)
    assert '<input type="radio" name="ends" value="" checked>' in client.get("/user").content.decode(), "off by default"
    answer = client.post("/user/notices", {"ends": "all"})
    assert (answer.status_code, "set one first" in answer.content.decode()) == (422, True)
    EmailAddress.objects.create(user=user, email=OWN, verified=True, primary=True)
    assert client.post("/user/notices", {"ends": "some"}).status_code == 422
    assert client.post("/user/notices", {"ends": "failed"}).status_code == 302
    assert NoticeChoice.objects.get().ends == "failed"
    assert 'value="failed" checked' in client.get("/user").content.decode()
    assert client.post("/user/notices", {}).status_code == 302
    assert not NoticeChoice.objects.exists()
    assert client.get("/user/notices").status_code == 405
    assert Client().post("/user/notices", {"ends": "all"})["Location"].startswith("/sign-in")


def test_the_task_is_claimed_by_a_row_and_runs_once_a_minute(town: Town, owner: User, mail: Sink) -> None:
    cancelled(town)
    tasks.send()
    assert len(mail.taken) == 1
    later()
    cancelled(town)
    tasks.send()
    assert len(mail.taken) == 1


def test_two_workers_at_once_tell_each_end_once(transactional_db: None, mail: Sink) -> None:
    town = Town()
    town.machine()
    people = [User.objects.create(username=f"p{n}", default_project=town.project) for n in range(6)]
    for user in people:
        Member.objects.create(project=town.project, user=user, role="member")
        EmailAddress.objects.create(user=user, email=f"{user.username}@example.org", verified=True, primary=True)
        notices.choose(user, "all", "en")
        job = service.submit({"name": "job", "run": "x"}, user)
        service.cancel(job, actor=user.username)

    def work() -> None:
        try:
            notices.send()
        finally:
            connection.close()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(each["To"] for each in mail.mails()) == [f"p{n}@example.org" for n in range(6)]
    assert Notice.objects.filter(sent_at=None).count() == 0
