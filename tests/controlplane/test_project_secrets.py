"""Secrets of projects and jobs: encrypted where they lie, opened for the agent that runs the part, told to nobody."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client

from agents.protocol import PartSpec
from controlplane.accounts import envelope, keys, secrets, service
from controlplane.accounts.models import AuditEntry, Project, Secret
from controlplane.jobs import sealed
from controlplane.jobs.models import Job, JobSecrets, Stage
from deploy.local.home import new_secrets_key
from tests.controlplane.people import Person, Town
from tests.record.yard import Agent, Yard, stage

VALUE = "canary-of-a-project"
INLINE = "canary-of-a-job"


@pytest.fixture
def key_file(settings: Any, tmp_path: Path) -> Path:
    """A file of keys of this test's own."""
    settings.SECRETS_KEY_FILE = tmp_path / "keys"
    settings.SECRETS_KEY_FILE.write_text(new_secrets_key())
    return Path(settings.SECRETS_KEY_FILE)


def ordered(agent: Agent) -> dict[str, PartSpec]:
    return {wanted.spec.stage: wanted.spec for wanted in agent.look() if wanted.spec}


def put(town: Town, name: str = "HF_TOKEN", value: str = VALUE) -> Secret:
    assert town.owner.user is not None
    return secrets.put(town.owner.user, town.project, name, value)[0]


def kept_anywhere(*values: str) -> set[str]:
    """The tables in which one of these values can be read."""
    return {
        model._meta.label
        for model in apps.get_models()
        if any(value in repr(list(model._base_manager.values())) for value in values)  # type: ignore[attr-defined]
    }


def _changed(sealed: bytes) -> bytes:
    """The same bytes with one bit of the last one turned."""
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def test_an_envelope_opens_in_its_own_place_only(key_file: Path) -> None:
    one = envelope.seal(b"content", "secret a")
    assert envelope.unseal(one, "secret a") == b"content"
    assert b"content" not in one.ciphertext + one.wrapped_key
    assert envelope.seal(b"content", "secret a").ciphertext != one.ciphertext
    for changed, context in (
        (one, "secret b"),
        (envelope.Envelope(_changed(one.ciphertext), one.wrapped_key, one.key_id), "secret a"),
        (envelope.Envelope(one.ciphertext, _changed(one.wrapped_key), one.key_id), "secret a"),
        (envelope.Envelope(b"", one.wrapped_key, one.key_id), "secret a"),
        (envelope.Envelope(one.ciphertext, one.wrapped_key, "0" * 16), "secret a"),
    ):
        with pytest.raises(keys.KeyUnavailable):
            envelope.unseal(changed, context)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read its keys"),
        ("", "there is no key in"),
        ("# none\n\n", "there is no key in"),
        ("c2hvcnQ=\n", "line 1 of .* is no key"),
        ("not base64!\n", "line 1 of .* is no key"),
    ],
)
def test_a_file_of_keys_that_is_none_is_said(key_file: Path, content: str | None, says: str) -> None:
    key_file.unlink() if content is None else key_file.write_text(content)
    with pytest.raises(keys.KeyUnavailable, match=says):
        envelope.seal(b"content", "")


def test_a_wrapper_of_ones_own_takes_the_place_of_the_file(settings: Any) -> None:
    settings.SECRETS_KEY_WRAPPER = "tests.controlplane.test_project_secrets.Elsewhere"
    keys.wrapper.cache_clear()
    try:
        one = envelope.seal(b"content", "here")
        assert one.key_id == "elsewhere/1"
        assert envelope.unseal(one, "here") == b"content"
    finally:
        keys.wrapper.cache_clear()


class Elsewhere:
    """What a key management service would be."""

    def newest(self) -> str:
        return "elsewhere/1"

    def wrap(self, data_key: bytes, context: bytes) -> tuple[str, bytes]:
        return "elsewhere/1", bytes(byte ^ 0x55 for byte in data_key)

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in wrapped)


def test_a_job_names_a_secret_and_the_agent_gets_it(town: Town) -> None:
    put(town)
    agent = town.machine()
    town.job(secrets=["HF_TOKEN", {"name": "HF_TOKEN", "env": "TOKEN"}, {"name": "HF_TOKEN", "file": True}])
    town.cycle()
    assert kept_anywhere(VALUE) == set()
    spec = ordered(agent)["main"]
    assert spec.env == {"HF_TOKEN": VALUE, "TOKEN": VALUE}
    assert spec.secrets == ["HF_TOKEN", "TOKEN"]
    assert spec.secret_files == {"HF_TOKEN_FILE": VALUE}
    assert Secret.objects.get().last_used_at is not None


def test_the_newest_version_is_given_when_a_part_starts(town: Town) -> None:
    put(town)
    agent = town.machine()
    town.job(secrets=["HF_TOKEN"])
    assert (put(town, value="rotated").version, put(town, value="rotated").version) == (2, 2)
    town.cycle()
    assert ordered(agent)["main"].env == {"HF_TOKEN": "rotated"}


def test_what_a_job_may_not_name_is_said(town: Town) -> None:
    put(town)
    other = Project.objects.get(name="other")
    assert town.stranger.user is not None
    secrets.put(town.stranger.user, other, "THEIRS", "of strangers")
    for asked, pointer, code, says in (
        (["HF_TOKE"], "/secrets/0", "unknown_value", "did you mean HF_TOKEN?"),
        (["THEIRS"], "/secrets/0", "unknown_value", "has no secret"),
        ([{"name": "HF_TOKEN", "env": "YARD_URL"}], "/secrets/0/env", "invalid_name", "not beginning with YARD_"),
        ([{"name": "HF_TOKEN", "env": "A B"}], "/secrets/0/env", "invalid_name", "letters, digits and _"),
        ([{"name": "HF_TOKEN", "as": "X"}], "/secrets/0/as", "unknown_key", "there is no key"),
        ([{"name": "HF_TOKEN", "env": "LOUD"}], "/secrets/0", "duplicate", "env sets the variable LOUD already"),
        (["HF_TOKEN", {"name": "HF_TOKEN", "file": True, "env": "HF_TOKEN"}], "/secrets/1", "duplicate", "two secrets"),
        ([7], "/secrets/0", "not_a_mapping", "mapping"),
        ([{"file": "yes", "name": "HF_TOKEN"}], "/secrets/0/file", "invalid", "true or false"),
    ):
        answer = town.owner.post("/jobs", {"name": "s", "run": "true", "env": {"LOUD": "x"}, "secrets": asked})
        assert answer.status_code == 422, asked
        found = [(each["pointer"], each["code"], each["detail"]) for each in json.loads(answer.content)["errors"]]
        assert [(at, what) for at, what, _says in found] == [(pointer, code)]
        assert says in found[0][2]


def test_a_stage_waits_for_a_deleted_secret_and_goes_on_when_it_is_set_again(town: Town) -> None:
    put(town)
    agent = town.machine()
    job = town.job(secrets=["HF_TOKEN"])
    assert town.lead.user is not None
    secrets.delete(town.lead.user, town.project, "HF_TOKEN")
    town.cycle()
    reason = stage(job).reasons[0]
    assert (reason["code"], reason["params"]) == ("SecretMissing", {"secret": "HF_TOKEN", "project": "default"})
    assert (
        "needs secret HF_TOKEN, which project default does not have"
        in town.owner.get(f"/jobs/{job.number}/why").content.decode()
    )
    put(town, value="again")
    town.cycle()
    assert ordered(agent)["main"].env == {"HF_TOKEN": "again"}


def test_a_part_without_its_secret_is_refused_with_a_sentence(town: Town) -> None:
    put(town)
    agent = town.machine()
    town.job(secrets=["HF_TOKEN"])
    town.cycle()
    Secret.objects.all().delete()
    spec = ordered(agent)["main"]
    assert (spec.refused, spec.argv) == (("SecretMissing", {"name": "HF_TOKEN", "project": "default"}), [])


def test_a_wrong_file_of_keys_starts_nothing_and_says_which_key_is_missing(town: Town, key_file: Path) -> None:
    agent = town.machine()
    right = key_file.read_text()
    town.job(env={"HF_TOKEN": INLINE})
    town.cycle()
    key_file.write_text(new_secrets_key())
    spec = ordered(agent)["main"]
    assert spec.refused is not None
    assert (spec.refused[0], spec.argv, INLINE in repr(spec)) == ("SecretsClosed", [], False)
    assert JobSecrets.objects.get().key_id in str(spec.refused[1]["error"])
    key_file.write_text(new_secrets_key() + right)
    assert ordered(agent)["main"].env == {"HF_TOKEN": INLINE}
    key_file.unlink()
    refused = town.owner.post("/jobs", {"name": "s", "run": "true", "env": {"HF_TOKEN": "x"}})
    assert (refused.status_code, json.loads(refused.content)["code"]) == (503, "secrets_unavailable")
    assert town.owner.post("/jobs", {"name": "s", "run": "true"}).status_code == 201


def test_keys_are_rotated_without_opening_a_secret(town: Town, key_file: Path) -> None:
    put(town)
    agent = town.machine()
    town.job(env={"HF_TOKEN": INLINE}, secrets=[{"name": "HF_TOKEN", "env": "NAMED"}])
    before = {
        type(one): (one.key_id, bytes(one.ciphertext)) for one in (Secret.objects.get(), JobSecrets.objects.get())
    }
    said = io.StringIO()
    call_command("rotate_secrets_key", "--add", stdout=said)
    assert "2 secrets are wrapped" in said.getvalue()
    newest, _old = keys.read_keys(key_file)
    for one in (Secret.objects.get(), JobSecrets.objects.get()):
        was, text = before[type(one)]
        assert (one.key_id, bytes(one.ciphertext)) == (newest, text)
        assert was != newest
    key_file.write_text(key_file.read_text().splitlines()[0])  # the old key is not needed any more
    town.cycle()
    assert ordered(agent)["main"].env == {"HF_TOKEN": INLINE, "NAMED": VALUE}
    call_command("rotate_secrets_key", stdout=said)
    assert "0 secrets are wrapped" in said.getvalue()
    key_file.write_text(new_secrets_key())
    with pytest.raises(CommandError, match="2 could not be opened"):
        call_command("rotate_secrets_key", stdout=said)


def test_values_of_a_job_go_with_it_and_when_it_has_ended(town: Town) -> None:
    agent = town.machine()
    first, second = town.job(env={"A_TOKEN": INLINE}), town.running(agent, env={"A_TOKEN": INLINE})
    assert JobSecrets.objects.count() == 2
    assert sealed.forget_ended() == 0
    town.owner.post(f"/jobs/{second.number}/cancel")
    assert sealed.forget_ended() == 0  # it is being stopped
    agent.end(stage(second))
    assert (sealed.forget_ended(), JobSecrets.objects.count()) == (1, 1)
    assert JobSecrets.objects.get().job_id == first.pk


def test_rows_of_the_release_before_are_moved_and_can_be_moved_back(town: Town) -> None:
    agent = town.machine()
    job = town.job(env={"HF_TOKEN": INLINE, "LOUD": "x"}, hold=True)
    done = town.running(agent, env={"HF_TOKEN": "of one that ended"})
    migration = import_module("controlplane.jobs.migrations.0029_secrets")
    migration.into_rows(apps, None)
    JobSecrets.objects.all().delete()
    Job.objects.filter(pk=job.pk).update(spec={"run": "true", "env": {"HF_TOKEN": INLINE, "LOUD": "x"}})
    agent.end(stage(done))
    assert kept_anywhere(INLINE, "of one that ended") == {"jobs.Job", "jobs.Stage"}
    migration.into_envelopes(apps, None)
    assert kept_anywhere(INLINE, "of one that ended") == set()
    assert [one.job_id for one in JobSecrets.objects.all()] == [job.pk]
    assert Job.objects.get(pk=job.pk).spec["env"] == {"HF_TOKEN": "***", "LOUD": "x"}
    assert Stage.objects.get(job=job).request["alternatives"][0]["env"]["LOUD"] == "x"
    town.owner.post(f"/jobs/{job.number}/release")
    town.cycle()
    assert ordered(agent)["main"].env == {"HF_TOKEN": INLINE, "LOUD": "x"}


def send(person: Person, method: str, path: str, body: Any = None) -> HttpResponse:
    content = "" if body is None else json.dumps(body)
    answer: HttpResponse = person.client.generic(method, f"/api/v1{path}", content, content_type="application/json")
    return answer


HERE = "/projects/default/secrets"


def test_who_may_set_list_and_delete(town: Town) -> None:
    every = (town.owner, town.mate, town.lead, town.staff, town.viewer, town.stranger, town.anonymous)
    codes = [send(who, "PUT", f"{HERE}/S{at}", {"value": VALUE}).status_code for at, who in enumerate(every)]
    assert codes == [201, 201, 201, 201, 403, 404, 401]
    assert [who.get(HERE).status_code for who in every] == [200, 200, 200, 200, 200, 404, 401]
    assert [send(who, "DELETE", f"{HERE}/S0").status_code for who in every] == [403, 403, 204, 204, 403, 404, 401]
    listed = town.viewer.read(HERE)
    assert [(one["name"], one["version"], one["updated_by"]) for one in listed["results"]] == [
        ("S1", 1, "mate"),
        ("S2", 1, "lead"),
        ("S3", 1, town.user.get_username()),
    ]
    assert (listed["may_set"], listed["may_delete"]) == (False, False)
    reader = Person(town.owner.user, "read")
    assert send(reader, "PUT", f"{HERE}/S0", {"value": VALUE}).status_code == 403


def test_setting_is_idempotent_and_no_answer_repeats_a_value(town: Town) -> None:
    answers = [send(town.owner, "PUT", f"{HERE}/HF_TOKEN", {"value": value}) for value in (VALUE, VALUE, "other value")]
    assert [(one.status_code, json.loads(one.content)["version"]) for one in answers] == [(201, 1), (200, 1), (200, 2)]
    answers += [send(town.lead, "DELETE", f"{HERE}/HF_TOKEN") for _ in range(2)]
    assert [one.status_code for one in answers[3:]] == [204, 204]
    for body, status in (
        ({"value": VALUE + "\0"}, 400),
        ({"value": ""}, 422),
        ({"value": VALUE * 4000}, 422),
        ({"value": [VALUE]}, 400),
        ({"value": VALUE, "more": VALUE}, 400),
        ({"value": VALUE + "\ud800"}, 400),
        (VALUE, 400),
        (None, 400),
    ):
        answers.append(send(town.owner, "PUT", f"{HERE}/HF_TOKEN", body))
        assert answers[-1].status_code == status, body
        assert answers[-1]["Content-Type"] == "application/problem+json"
    for name in ("1ST", "A-B", "YARD_TOKEN", "X" * 129, "a b"):
        answers.append(send(town.owner, "PUT", f"{HERE}/{name}", {"value": VALUE}))
        assert (answers[-1].status_code, json.loads(answers[-1].content)["errors"][0]["pointer"]) == (422, "/name")
    assert not [one for one in answers if VALUE in one.content.decode()]
    assert not Secret.objects.exists()
    told = AuditEntry.objects.filter(action__startswith="secret.").order_by("id")
    assert [(one.action, one.name, one.actor, one.before, one.after) for one in told] == [
        ("secret.set", "default/HF_TOKEN", "owner", {}, {"version": 1}),
        ("secret.set", "default/HF_TOKEN", "owner", {}, {"version": 2}),
        ("secret.delete", "default/HF_TOKEN", "lead", {"version": 2}, {}),
    ]


def test_a_project_has_so_many_and_no_more(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "MOST_SECRETS", 2)
    codes = [send(town.owner, "PUT", f"{HERE}/S{at}", {"value": VALUE}).status_code for at in range(3)]
    assert codes == [201, 201, 409]
    assert send(town.owner, "PUT", f"{HERE}/S1", {"value": "new"}).status_code == 200


def browser(person: Person) -> Client:
    client = Client()
    assert person.user is not None
    client.force_login(person.user)
    return client


def test_the_page_sets_and_deletes_and_shows_no_value(town: Town) -> None:
    client = browser(town.lead)
    set_ = {"project": "default", "name": "KEY", "value": f"{VALUE}\r\nsecond line"}
    assert client.post("/secrets/set", set_)["Location"] == "/secrets?project=default&done=set"
    assert Secret.objects.get().content().decode() == f"{VALUE}\nsecond line"
    page = client.get("/secrets?project=default&done=set").content.decode()
    assert "KEY" in page
    assert "Delete the secret KEY" in page
    wrong = client.post("/secrets/set", {**set_, "name": "A B"})
    assert wrong.status_code == 422
    assert "letters, digits and _" in wrong.content.decode()
    assert VALUE not in page + wrong.content.decode()
    viewer = browser(town.viewer)
    assert viewer.post("/secrets/set", set_).status_code == 403
    assert viewer.post("/secrets/delete", set_).status_code == 403
    assert "Set a secret" not in viewer.get("/secrets").content.decode()
    assert browser(town.stranger).post("/secrets/set", set_).status_code == 404
    assert browser(town.stranger).get("/secrets?project=default").status_code == 404
    assert Client().get("/secrets").status_code == 302
    assert client.post("/secrets/delete", set_)["Location"] == "/secrets?project=default&done=deleted"
    assert not Secret.objects.exists()


def test_a_draft_that_a_browser_may_keep_has_no_value(town: Town) -> None:
    client = browser(town.owner)
    text = f"run: 'true'\nenv:\n  HF_TOKEN: {INLINE}\n  LOUD: x\n"
    answer = client.post("/jobs/new/parse", text, content_type="application/yaml")
    told = json.loads(answer.content)
    assert told["draft"] == {"run": "true", "env": {"HF_TOKEN": "***", "LOUD": "x"}}
    assert answer["Cache-Control"] == "no-store"
    answer = client.post("/jobs/new/parse", "run: 'true'\n", content_type="application/yaml")
    assert json.loads(answer.content) == {"spec": {"run": "true"}, "draft": None}


def test_the_command_takes_a_value_from_a_file_or_from_its_input_alone(
    transactional_db: None,
    live_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from switchyard.cli.main import main

    yard = Yard()
    _, token = service.make_token(yard.user, "test", scopes=service.SCOPES)
    monkeypatch.setenv("YARD_URL", live_server.url)
    monkeypatch.setenv("YARD_TOKEN", token)
    (tmp_path / "key").write_text(f"{VALUE}\nwith its end\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{VALUE}\n".encode())))
    assert main(["secret", "set", "HF_TOKEN", "--project", "default"]) == 0
    assert main(["secret", "set", "KEY", "--project", "default", "--file", str(tmp_path / "key")]) == 0
    assert {one.name: one.content().decode() for one in Secret.objects.all()} == {
        "HF_TOKEN": VALUE,
        "KEY": f"{VALUE}\nwith its end\n",
    }
    assert main(["secret", "list", "--project", "default"]) == 0
    assert main(["secret", "delete", "KEY", "--project", "default"]) == 0
    assert main(["secret", "delete", "KEY", "--project", "nowhere"]) == 3
    assert main(["secret", "set", "--project", "default"]) == 2
    assert main(["secret", "set", "A", "a-value", "--project", "default"]) == 2
    said = capsys.readouterr()
    assert "secret HF_TOKEN of project default has version 1" in said.out
    assert VALUE not in said.out + said.err
    assert [one.name for one in Secret.objects.all()] == ["HF_TOKEN"]


def test_health_tells_a_key_that_is_missing(town: Town, key_file: Path) -> None:
    def told() -> tuple[bool, str]:
        (one,) = [each for each in town.staff.read("/health")["checks"] if each["name"] == "secrets"]
        return one["ok"], one["says"]

    newest = next(iter(keys.read_keys(key_file)))
    town.machine()
    put(town)
    town.job(env={"HF_TOKEN": INLINE})
    assert told() == (True, f"all their keys are there; {newest} wraps new ones")
    key_file.write_text(new_secrets_key())
    assert told()[0] is False
    assert f"the server has no key {newest}" in told()[1]
