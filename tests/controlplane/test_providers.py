"""Signing in with a provider of OpenID Connect, which is a process of its own: who gets in, who gets an account, and
what a provider or its people cannot do."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from controlplane.accounts.models import AuditEntry, Member, Project, User
from controlplane.accounts.provider import bounded
from controlplane.accounts.providers import Provider, read_grants, read_providers
from tests.controlplane import oidc_server

ROOT = Path(__file__).parents[2]
MIA = {"sub": "42", "email": "mia@example.org", "email_verified": True, "preferred_username": "mia", "name": "Mia M"}


class World:
    """The provider, and a way for a browser through it."""

    def __init__(self, issuer: str, settings: Any) -> None:
        self.issuer, self._settings = issuer, settings

    def configure(self, **more: Any) -> None:
        given = {"domains": frozenset(), "groups": frozenset(), "groups_claim": "groups", "grants": (), **more}
        corp = Provider("corp", "Corp", self.issuer, oidc_server.CLIENT, oidc_server.SECRET, **given)
        self._settings.OIDC_PROVIDERS = {"corp": corp}
        self._settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [corp.app()]}}

    def says(self, claims: dict[str, Any], **of_token: Any) -> None:
        httpx.post(
            f"{self.issuer}/claims", json={"claims": claims, "of_token": of_token}, timeout=60
        ).raise_for_status()

    def back(self, client: Client, **sent: str) -> str:
        """Where the provider sends the browser back to, after it consented."""
        query = "&".join(f"{name}={value}" for name, value in sent.items())
        page = client.post(f"/sign-in/with/corp?{query}").content.decode()
        found = re.search(r'url=(http[^"]+)"', page)
        assert found, page
        answer = httpx.get(html.unescape(found[1]), timeout=60)
        assert answer.status_code == 302
        return answer.headers["Location"].removeprefix("http://testserver")

    def sign_in(self, client: Client, **sent: str) -> Any:
        return client.get(self.back(client, **sent))


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.controlplane.oidc_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture
def world(issuer: str, settings: Any, db: None) -> World:
    found = World(issuer, settings)
    found.configure(domains=frozenset({"example.org"}))
    found.says(MIA)
    return found


def who(client: Client) -> str | None:
    key = client.session.get("_auth_user_id")
    return User.objects.get(pk=key).username if key else None


def test_the_page_offers_the_provider_and_goes_there_by_no_redirect(world: World) -> None:
    client = Client()
    assert 'action="/sign-in/with/corp"' in client.get("/sign-in").content.decode()
    answer = client.post("/sign-in/with/corp")
    assert answer.status_code == 200
    assert "code_challenge" in answer.content.decode()
    assert client.get("/sign-in/with/corp").status_code == 405
    assert client.post("/sign-in/with/nobody").status_code == 404


def test_whose_domain_is_named_gets_an_account_once_and_is_the_same_person_again(world: World) -> None:
    client = Client()
    assert world.sign_in(client, next="/jobs")["Location"] == "/jobs"
    assert who(client) == "mia"
    user = User.objects.get(username="mia")
    assert not user.has_usable_password()
    assert (user.email, user.is_staff, user.is_superuser) == ("mia@example.org", False, False)
    world.says(MIA | {"preferred_username": "another", "email": "moved@example.org"})
    again = Client()
    world.sign_in(again)
    assert who(again) == "mia", "the subject is who it is, whatever else is said"
    assert User.objects.count() == 1


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ({"email": "mia@elsewhere.org"}, {}),
        ({"email_verified": False}, {}),
        ({"email_verified": "true"}, {}),
        ({"email": "mia@example.org.evil.net"}, {}),
        ({}, {"domains": frozenset()}),
        ({}, {"groups": frozenset({"yard-users"})}),
        ({"groups": ["other"]}, {"groups": frozenset({"yard-users"})}),
        ({"groups": "yard-users"}, {"groups": frozenset({"yard-users"})}),
    ],
)
def test_nobody_else_gets_one(world: World, said: dict[str, Any], more: dict[str, Any]) -> None:
    world.configure(**{"domains": frozenset({"example.org"}), **more})
    world.says(MIA | said)
    client = Client()
    answer = world.sign_in(client)
    assert answer.status_code == 403
    assert 'role="alert"' in answer.content.decode()
    assert who(client) is None
    assert not User.objects.exists()


def test_an_address_that_somebody_has_makes_nobody_them(world: World) -> None:
    User.objects.create_user("boss", email="MIA@example.org", is_superuser=True)
    client = Client()
    answer = world.sign_in(client)
    assert answer.status_code == 403
    assert "connect Corp on your user page" in answer.content.decode()
    assert who(client) is None


def test_whoever_is_signed_in_connects_their_account_and_signs_in_by_it(world: World) -> None:
    world.configure()
    user = User.objects.create_user("boss", email="boss@example.org")
    client = Client()
    client.force_login(user)
    assert world.sign_in(client, process="connect", next="/user").status_code == 302
    other = Client()
    world.sign_in(other)
    assert who(other) == "boss"
    page = client.get("/user").content.decode()
    assert "Disconnect" in page
    account = SocialAccount.objects.get(user=user)
    stranger = Client()
    stranger.force_login(User.objects.create_user("stranger"))
    assert stranger.post("/user/accounts", {"account": account.pk}).status_code == 422
    user.set_password("a long pass phrase")
    user.save()
    client.force_login(user)
    assert client.post("/user/accounts", {"account": account.pk})["Location"] == "/user?done=disconnected"
    assert not SocialAccount.objects.exists()


def test_an_account_that_is_connected_to_another_stays_theirs(world: World) -> None:
    world.sign_in(Client())
    thief = Client()
    thief.force_login(User.objects.create_user("thief"))
    world.sign_in(thief, process="connect", next="/user")
    assert SocialAccount.objects.get().user.username == "mia"


def test_groups_give_roles_and_take_them(world: World) -> None:
    vision, infra, own = (Project.objects.create(name=name) for name in ("vision", "infra", "own"))
    grants = read_grants("X", "ml=vision:viewer, leads=vision:lead, ops=infra, gone=nothing:lead")
    world.configure(domains=frozenset({"example.org"}), grants=grants)
    world.says(MIA | {"groups": ["ml", "leads"]})
    world.sign_in(Client())
    user = User.objects.get(username="mia")
    Member.objects.create(project=own, user=user, role="lead")

    def roles() -> dict[str, str]:
        return dict(Member.objects.filter(user=user).values_list("project__name", "role"))

    assert roles() == {"vision": "lead", "own": "lead"}
    world.says(MIA | {"groups": ["ml", "ops"]})
    world.sign_in(Client())
    assert roles() == {"vision": "viewer", "infra": "member", "own": "lead"}
    world.says(MIA)
    world.sign_in(Client())
    assert roles() == {"own": "lead"}
    assert vision != infra
    world.sign_in(Client())
    written = AuditEntry.objects.filter(kind="member").order_by("id")
    assert {(each.actor, each.actor_id) for each in written} == {("mia", user.pk)}
    assert all(each.credential.startswith("groups of ") for each in written)
    assert sorted((each.action, each.name, str(each.before), str(each.after)) for each in written) == [
        ("member.add", "mia in infra", "{}", "{'role': 'member'}"),
        ("member.add", "mia in vision", "{}", "{'role': 'lead'}"),
        ("member.change", "mia in vision", "{'role': 'lead'}", "{'role': 'viewer'}"),
        ("member.delete", "mia in infra", "{'role': 'member'}", "{}"),
        ("member.delete", "mia in vision", "{'role': 'viewer'}", "{}"),
    ], "and nothing where nothing changed"


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "x" * 10_000,
        "а" + "dmin",
        "ADMIN",
        "admin ",
        "ad\u202emin",
        "..",
        "a\u0000b",
        7,
        None,
    ],
)
def test_hostile_names_make_nobody_look_like_somebody_else(world: World, name: Any) -> None:
    User.objects.create_user("admin", is_superuser=True)
    world.says(
        MIA | {"preferred_username": name, "name": "\u202e<blink>" * 3_000, "given_name": ["x"], "picture": "x" * 9999}
    )
    client = Client()
    assert world.sign_in(client).status_code == 302
    made = User.objects.get(pk=client.session["_auth_user_id"])
    assert re.fullmatch(r"[a-z0-9._+@-]{1,63}", made.username)
    assert made.username != "admin"
    assert len(repr(SocialAccount.objects.get().extra_data)) < 2_000
    page = client.get("/user").content.decode()
    assert "<img src=x" not in page
    assert "<blink>" not in page


@pytest.mark.parametrize("sub", ["", None, 7, "x" * 192, "a\u0000b", ["42"]])
def test_an_answer_about_nobody_signs_nobody_in(world: World, sub: Any) -> None:
    world.says(MIA | {"sub": sub})
    client = Client()
    assert world.sign_in(client).status_code == 401
    assert who(client) is None


@pytest.mark.parametrize("of_token", [{"sub": "43"}, {"aud": "another"}, {"iss": "http://evil"}, {"exp": 1}])
def test_a_token_for_another_or_about_another_signs_nobody_in(world: World, of_token: dict[str, Any]) -> None:
    world.says(MIA, **of_token)
    client = Client()
    assert world.sign_in(client).status_code == 401
    assert who(client) is None


def test_an_answer_is_taken_once_and_only_in_the_browser_that_asked(world: World) -> None:
    victim, thief = Client(), Client()
    back = world.back(victim)
    assert thief.get(back).status_code == 401
    assert who(thief) is None
    assert victim.get(back).status_code == 302
    assert who(victim) == "mia"
    victim.post("/sign-out")
    assert victim.get(back).status_code == 401, "a state that was used is no state"
    assert who(victim) is None
    assert Client().get("/sign-in/with/corp/callback?state=x&code=y").status_code == 401
    cancelled = Client()
    state = re.search(r"state=([\w-]+)", world.back(cancelled))
    assert state
    answer = cancelled.get(f"/sign-in/with/corp/callback?state={state[1]}&error=access_denied")
    assert answer["Location"] == "/sign-in/cancelled"


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_signing_in_leads_to_this_site_alone(world: World, to: str) -> None:
    assert world.sign_in(Client(), next=to)["Location"] == "/"


def test_a_session_from_before_is_none_after(world: World) -> None:
    client = Client()
    client.get("/sign-in")
    world.back(client)
    before = client.cookies["yard_session"].value
    world.sign_in(client)
    assert client.cookies["yard_session"].value != before
    stale = Client()
    stale.cookies["yard_session"] = before
    assert stale.get("/user").status_code == 302


def test_a_provider_that_is_away_is_told(world: World, settings: Any) -> None:
    world.configure()
    app = {**settings.OIDC_PROVIDERS["corp"].app(), "settings": {"server_url": "http://127.0.0.1:9"}}
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [app]}}
    answer = Client().post("/sign-in/with/corp")
    assert answer.status_code == 503
    assert "does not answer" in answer.content.decode()


GIVEN = {
    "YARD_OIDC": "corp",
    "YARD_OIDC_CORP_ISSUER": "https://id.example.org/",
    "YARD_OIDC_CORP_CLIENT_ID": "yard",
}


def test_the_environment_configures_several(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s\n")
    secret = str(tmp_path / "secret")
    more = {f"YARD_OIDC_LAB_EU_{name}": value for name, value in (("ISSUER", "http://localhost:1"), ("CLIENT_ID", "y"))}
    more |= {"YARD_OIDC_LAB_EU_CLIENT_SECRET_FILE": secret, "YARD_OIDC_LAB_EU_DOMAINS": "@Example.org"}
    found = read_providers(GIVEN | more | {"YARD_OIDC": "corp, lab-eu", "YARD_OIDC_CORP_CLIENT_SECRET_FILE": secret})
    assert [(each.name, each.issuer, each.secret) for each in found.values()] == [
        ("corp", "https://id.example.org", "s"), ("lab-eu", "http://localhost:1", "s"),
    ]  # fmt: skip
    assert found["lab-eu"].domains == {"example.org"}
    assert read_providers({}) == {}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"YARD_OIDC_CORP_ISSUER": ""}, "YARD_OIDC_CORP_ISSUER is not set"),
        ({"YARD_OIDC_CORP_ISSUER": "http://id.example.org"}, "begins with https"),
        ({"YARD_OIDC_CORP_CLIENT_SECRET_FILE": "/nowhere"}, "cannot be read"),
        ({"YARD_OIDC_CORP_CLIENT_SECRET_FILE": "/dev/null"}, "is empty"),
        ({"YARD_OIDC": "Corp"}, "lower-case"),
        ({"YARD_OIDC_CORP_PROJECTS": "a=b:king", "YARD_OIDC_CORP_CLIENT_SECRET_FILE": __file__}, "GROUP=PROJECT:ROLE"),
    ],
)
def test_what_is_wrong_there_is_said_with_its_variable(changed: dict[str, str], told: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=told):
        read_providers(GIVEN | changed)


def test_claims_are_bounded() -> None:
    found = bounded({"sub": "1", "roles": ["a", 7, "b\n", "x" * 201] + ["c"] * 5_000, "evil": "x"}, "roles")
    assert (set(found), len(found["groups"])) == ({"sub", "email_verified", "groups"}, 997)
