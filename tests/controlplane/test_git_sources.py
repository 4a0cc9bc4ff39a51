"""Code from git repositories: fetched once by a worker, from where the server may ask, and given to all attempts."""

from __future__ import annotations

import http.server
import io
import ipaddress
import json
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages

from controlplane.accounts import secrets
from controlplane.jobs import git_ask, git_fetch, service
from controlplane.jobs.git_fetch import NotFetched, Repository
from controlplane.jobs.models import Bundle, Event, GitSource, Job
from controlplane.operations import sources
from deploy.local.home import new_secrets_key
from tests.controlplane.people import Town
from tests.git_server import GitServer, git, serving
from tests.record.yard import Agent

LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.fixture
def server(settings: Any, tmp_path: Path) -> Iterator[GitServer]:
    settings.GIT_NETWORKS = LOCAL
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as one:
        one.repository("code.git")
        one.commit("code.git", {"train.py": "print('one')\n", "lib/a.py": ""})
        yield one


@pytest.fixture(autouse=True)
def blobs(settings: Any, tmp_path: Path) -> None:
    settings.SECRETS_KEY_FILE = tmp_path / "keys"
    settings.SECRETS_KEY_FILE.write_text(new_secrets_key())


@pytest.fixture
def agent(town: Town) -> Agent:
    return town.machine()


def asked(server: GitServer, name: str = "code.git", **more: Any) -> dict[str, Any]:
    return {"git": {"url": server.url(name), **more}}


def files_of(bundle: str) -> dict[str, bytes]:
    with storages["bundles"].open(Bundle.place(bundle)) as file:
        with tarfile.open(fileobj=io.BytesIO(file.read()), mode="r:gz") as archive:
            return {
                one.name: (content.read() if (content := archive.extractfile(one)) else b"")
                for one in archive
                if one.isfile()
            }


def shown(town: Town, job: Job) -> dict[str, Any]:
    found: dict[str, Any] = town.owner.read(f"/jobs/{job.number}")
    return found


def code_of(server: GitServer, name: str = "code.git", rev: str = "HEAD", **more: str) -> str:
    with pytest.raises(NotFetched) as told:
        git_fetch.fetch(Repository(server.url(name), rev, **more)).bundle.remove()
    return told.value.code


def test_a_job_waits_for_its_code_and_all_attempts_have_one_commit(town: Town, agent: Agent, server: GitServer) -> None:
    head = git(server.folder / "code.git", "rev-parse", "HEAD")
    job = town.job(workdir=asked(server, rev="main"), retry={"max": 2})
    town.cycle()
    assert agent.look() == []
    stage = shown(town, job)["stages"][0]
    assert stage["reasons"][0]["code"] == "SourcePending"
    assert shown(town, job)["source"] == {
        "url": server.url("code.git"), "rev": "main", "commit": None, "secret": None, "fault": ""
    }  # fmt: skip

    assert sources.fetch_due() == 1
    server.commit("code.git", {"train.py": "print('two')\n"})
    job.refresh_from_db()
    assert shown(town, job)["source"]["commit"] == head
    assert files_of(job.bundle) == {"train.py": b"print('one')\n", "lib/a.py": b""}
    town.cycle()
    assert [wanted.spec.bundle for wanted in agent.look() if wanted.spec] == [job.bundle]
    agent.start()
    agent.end(job.stages.get(), code=1)
    assert sources.fetch_due() == 0
    assert shown(town, job)["source"]["commit"] == head
    assert head in Event.objects.get(job=job, kind="source").text
    assert town.owner.user is not None
    town.owner.client.force_login(town.owner.user)
    page = town.owner.client.get(f"/jobs/{job.number}")
    assert (page.status_code, head.encode() in page.content) == (200, True)


def test_a_branch_a_tag_and_a_full_id_lead_to_a_commit(server: GitServer) -> None:
    folder = server.folder / "code.git"
    first = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "--annotate", "v1", "--message", "one")
    second = server.commit("code.git", {"train.py": "print('two')\n"})
    git(folder, "branch", "feature/new+x")
    for rev, commit in (("v1", first), ("refs/tags/v1", first), (first, first), ("feature/new+x", second)):
        found = git_fetch.fetch(Repository(server.url("code.git"), rev))
        again = git_fetch.fetch(Repository(server.url("code.git"), commit))
        for one in (found, again):
            one.bundle.remove()
        assert (found.commit, found.sha256) == (commit, again.sha256), "the same commit is the same bundle"


def test_elements_share_one_source_also_on_hold(town: Town, agent: Agent, server: GitServer) -> None:
    answer = town.owner.post(
        "/jobs", {"name": "a", "run": "true", "array": {"indexes": "0-3"}, "hold": True, "workdir": asked(server)}
    )
    assert answer.status_code == 201, answer.content
    assert GitSource.objects.count() == 1
    assert sources.fetch_due() == 1
    assert len(set(Job.objects.values_list("bundle", flat=True))) == 1
    assert "" not in Job.objects.values_list("bundle", flat=True)


def test_a_private_repository_is_opened_by_a_secret(town: Town, agent: Agent, server: GitServer) -> None:
    server.passwords["code.git"] = "deploy:canary"
    assert town.owner.user is not None
    secrets.put(town.owner.user, town.project, "GIT_TOKEN", "canary")
    job = town.job(workdir=asked(server, secret="GIT_TOKEN", username="deploy"))
    assert sources.fetch_due() == 1
    assert shown(town, job)["source"]["secret"] == "GIT_TOKEN"
    assert "canary" not in json.dumps(shown(town, job)) + json.dumps(list(GitSource.objects.values()), default=str)
    assert code_of(server) == "denied"
    assert code_of(server, username="deploy", password="wrong") == "denied"


def test_a_commit_that_the_project_has_is_not_fetched_again(town: Town, agent: Agent, server: GitServer) -> None:
    head = git(server.folder / "code.git", "rev-parse", "HEAD")
    first = town.job(workdir=asked(server, rev=head))
    assert sources.fetch_due() == 1
    server.asked.clear()
    second = town.job(workdir=asked(server, rev=head))
    assert sources.fetch_due() == 1
    for job in (first, second):
        job.refresh_from_db()
    assert (server.asked, second.bundle) == ([], first.bundle)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rev": "nowhere"}, "no such branch, tag or commit"),
        ({"rev": "0" * 40}, "no such branch, tag or commit"),
        ({"url": "missing.git"}, "there is no such repository"),
    ],
)
def test_what_cannot_be_fetched_fails_the_job_with_a_sentence(
    town: Town, agent: Agent, server: GitServer, change: dict[str, str], said: str
) -> None:
    if "url" in change:
        change = {"url": server.url(change["url"])}
    stages = [{"name": "a", "run": "true"}, {"name": "b", "run": "true", "needs": ["a"]}]
    body = {"name": "j", "stages": stages, "workdir": {"git": {"url": server.url("code.git"), **change}}}
    job = Job.objects.get(number=json.loads(town.owner.post("/jobs", body).content)["number"])
    assert sources.fetch_due() == 0
    found = shown(town, job)
    assert (found["state"], found["cause"]) == ("FAILED", "LAUNCH_FAILED")
    assert said in found["stages"][0]["detail"]
    assert [stage["state"] for stage in found["stages"]] == ["FAILED", "CANCELLED"]
    assert town.owner.user is not None
    town.owner.client.force_login(town.owner.user)
    assert said in town.owner.client.get(f"/jobs/{job.number}").content.decode()


def test_a_fault_that_passes_is_tried_again_later_and_not_for_ever(
    town: Town, agent: Agent, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/code.git"
        job = town.job(workdir={"git": {"url": url}})
        assert sources.fetch_due() == 0
        source = GitSource.objects.get()
        assert (source.fault, source.ended_at) == ("no_answer", None)
        assert source.retry_at is not None
        assert sources.fetch_due() == 0
        assert GitSource.objects.get().failures == 1, "it is left alone for a while"
        monkeypatch.setattr(sources, "MOST_TRIES", 2)
        GitSource.objects.update(retry_at=None)
        assert sources.fetch_due() == 0
    assert "did not answer" in shown(town, job)["stages"][0]["detail"]


def test_every_fault_has_a_sentence() -> None:
    for code in {code for code, _ in git_fetch._SAID} | git_fetch.PASSING:
        assert code in service.SOURCE_FAULTS


def test_a_redirection_is_not_followed(server: GitServer) -> None:
    server.moved["old.git"] = server.url("code.git")
    assert code_of(server, "old.git") == "redirected"
    assert [path for path, _ in server.asked] == ["/old.git/info/refs?service=git-upload-pack"]


def test_nothing_of_a_repository_is_run_and_what_is_left_out_is_told(server: GitServer, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    server.commit(
        "code.git",
        {
            ".gitattributes": "*.bin filter=lfs diff=lfs\n*.py filter=evil\n",
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = https://example.org/x\n',
            ".lfsconfig": f"[lfs]\n\turl = file://{tmp_path}\n",
            "hooks/post-checkout": f"#!/bin/sh\ntouch {touched}\n",
            "weights.bin": "version https://git-lfs.github.com/spec/v1\n",
        },
    )
    found = git_fetch.fetch(Repository(server.url("code.git"), "main"))
    found.bundle.remove()
    assert found.without == ("submodules", "lfs")
    assert not touched.exists()
    server.commit("code.git", {".gitmodules": f'[submodule "x"]\n\tpath = x\n\tupdate = !touch {touched}\n'})
    assert code_of(server) == "unsafe"
    assert not touched.exists()


def test_too_much_is_cut_off(server: GitServer, settings: Any) -> None:
    settings.BUNDLE_MAX_BYTES = 64 * 1024
    server.commit("code.git", {"noise": os.urandom(128 * 1024)})
    assert code_of(server) == "too_large", "the archive"
    server.commit("code.git", {"noise": os.urandom(1024 * 1024)})
    assert code_of(server) == "too_large", "the pack"


def test_files_that_unpack_to_too_much_are_cut_off(server: GitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_fetch, "MOST_UNPACKED", 2**20)
    server.commit("code.git", {"zeros": bytes(2**22)})
    assert code_of(server) == "too_large"


def test_a_server_that_says_nothing_is_given_up(server: GitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_fetch, "MOST_S", 1.5)

    def silent(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.rfile.read(1)

    server.answer = silent
    assert code_of(server) == "timed_out"


def test_a_dumb_server_leads_git_nowhere_else(server: GitServer) -> None:
    def dumb(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.end_headers()
        handler.wfile.write(b"" if "alternates" in handler.path else b"0" * 39 + b"1\trefs/heads/main\n")

    server.answer = dumb
    assert code_of(server, rev="main") in {"old_server", "no_answer"}
    assert not [path for path, _ in server.asked if "objects" in path]


def test_the_address_that_was_judged_is_the_one_that_is_asked(
    server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.server_address[1]
    resolved: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # No resolver knows this name: git must have been given its address.
    found = git_fetch.fetch(Repository(f"http://git.invalid:{port}/code.git", "main"))
    found.bundle.remove()
    assert resolved == ["git.invalid"]


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"git": {"url": "ext::sh -c touch% /tmp/x"}}, "/workdir/git/url"),
        ({"git": {"url": "file:///etc"}}, "/workdir/git/url"),
        ({"git": {"url": "ssh://git@example.org/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "git@example.org:code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "--upload-pack=touch /tmp/x"}}, "/workdir/git/url"),
        ({"git": {"url": "http://example.org/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://me:pw@example.org/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://169.254.169.254/latest"}}, "/workdir/git/url"),
        ({"git": {"url": "https://[::1]/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://127.1/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://0x7f000001/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://2130706433/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://127.0.0.1./code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://git%2eexample.org/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://*.example.org/code.git"}}, "/workdir/git/url"),
        ({"git": {"url": "https://example.org/code.git?x=1"}}, "/workdir/git/url"),
        ({"git": {"url": "https://example.org/a\nb"}}, "/workdir/git/url"),
        ({"git": {"url": "https://example.org"}}, "/workdir/git/url"),
        ({"git": {"url": "https://example.org/c", "rev": "--upload-pack=x"}}, "/workdir/git/rev"),
        ({"git": {"url": "https://example.org/c", "rev": "main:refs/x"}}, "/workdir/git/rev"),
        ({"git": {"url": "https://example.org/c", "rev": "+main"}}, "/workdir/git/rev"),
        ({"git": {"url": "https://example.org/c", "rev": "a..b"}}, "/workdir/git/rev"),
        ({"git": {"url": "https://example.org/c", "rev": "main\n"}}, "/workdir/git/rev"),
        ({"git": {"url": "https://example.org/c", "secret": "NONE"}}, "/workdir/git/secret"),
        ({"git": {"url": "https://example.org/c", "username": "x"}}, "/workdir/git/username"),
        ({"git": {"rev": "main"}}, "/workdir/git/url"),
        ({"git": {"url": "https://example.org/c", "depth": 3}}, "/workdir/git/depth"),
        ({"git": "https://example.org/c"}, "/workdir/git"),
        ({"svn": {}}, "/workdir/svn"),
        ({}, "/workdir/git"),
    ],
)
def test_what_is_no_repository_is_refused_with_its_field(town: Town, given: Any, pointer: str) -> None:
    answer = town.owner.post("/jobs", {"name": "j", "run": "true", "workdir": given})
    assert answer.status_code == 422, answer.content
    assert pointer in [each["pointer"] for each in json.loads(answer.content)["errors"]], answer.content


@pytest.mark.parametrize(
    "url",
    [
        "git@example.org:team/code.git",
        "ssh://git@example.org/team/code.git",
        "ssh://me:canary@example.org:2222/team/code.git",
        "git+ssh://example.org/team/code.git",
        "me@example.org:/team/code.git",
    ],
)
def test_an_address_for_ssh_is_refused_with_the_one_for_https(town: Town, url: str) -> None:
    answer = town.owner.post("/jobs", {"name": "j", "run": "true", "workdir": {"git": {"url": url}}})
    (told,) = json.loads(answer.content)["errors"]
    assert (answer.status_code, told["pointer"], told["code"]) == (422, "/workdir/git/url", "https_only")
    assert "https://example.org/team/code.git" in told["detail"]
    assert "canary" not in told["detail"]


def test_a_host_that_git_would_read_as_another_is_never_asked(
    server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git decodes the name of a host: who judges it as it is written would judge another one."""
    port = server.server_address[1]
    judged = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.9", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: judged)
    for host in ("loc%61lhost", "127%2e0.0.1", "127.1", "0x7f.1"):
        with pytest.raises(NotFetched) as told:
            git_fetch.fetch(Repository(f"http://{host}:{port}/code.git", "main"))
        assert told.value.code == "invalid_url", host
    assert server.asked == []


def test_a_secret_of_another_project_is_none(town: Town, agent: Agent, server: GitServer) -> None:
    assert town.owner.user is not None
    secrets.put(town.owner.user, town.project, "GIT_TOKEN", "canary")
    body = {"name": "j", "run": "true", "workdir": asked(server, secret="GIT_TOKEN")}
    assert town.stranger.post("/jobs", body).status_code == 422
    assert town.owner.post("/jobs", body).status_code == 201
    assert git_ask.REV.fullmatch("main")
