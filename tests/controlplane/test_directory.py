"""Signing in by an LDAP directory: a real OpenLDAP as a process of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from controlplane.accounts import providers
from controlplane.accounts.models import Member, Project, User
from controlplane.accounts.providers import read_directory

PASSWORD = "a pass phrase of the directory"
BASE = "dc=slapd-test,dc=python-ldap,dc=org"
PEOPLE, GROUPS = f"ou=people,{BASE}", f"ou=groups,{BASE}"


def entry(uid: str, **more: str) -> str:
    lines = {"objectClass": "inetOrgPerson", "uid": uid, "cn": uid, "sn": "M", "userPassword": PASSWORD, **more}
    return f"dn: uid={uid},{PEOPLE}\n" + "".join(f"{name}: {value}\n" for name, value in lines.items()) + "\n"


def group(name: str, *uids: str) -> str:
    members = "".join(f"member: uid={uid},{PEOPLE}\n" for uid in uids)
    return f"dn: cn={name},{GROUPS}\nobjectClass: groupOfNames\ncn: {name}\n{members}\n"


TREE = (
    f"dn: {PEOPLE}\nobjectClass: organizationalUnit\nou: people\n\n"
    f"dn: {GROUPS}\nobjectClass: organizationalUnit\nou: groups\n\n"
    + entry("mia", mail="mia@example.org", givenName="M" * 5_000)
    + entry("admin")
    + entry("outside")
    + entry("böse")
    + group("yard", "mia", "admin", "böse")
    + group("ml", "mia")
)


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (shutil.which("slapd") or Path("/usr/sbin/slapd").exists()):
        pytest.skip("no slapd (apt-get install slapd ldap-utils)")
    pytest.importorskip("django_auth_ldap", reason="django-auth-ldap is not installed (pip install switchyard[ldap])")
    from slapdtest import SlapdObject

    class Server(SlapdObject):
        TMPDIR = str(tmp_path_factory.mktemp("slapd"))
        openldap_schema_files = ("core.ldif", "cosine.ldif", "inetorgperson.ldif")

    with Server() as server:
        server.ldapadd(f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\ndc: slapd-test\no: x\n\n" + TREE)
        yield server


@pytest.fixture
def directory(slapd: Any, db: None, settings: Any, tmp_path: Path) -> Any:
    """Configures the directory; more variables may change it."""
    (tmp_path / "password").write_text(slapd.root_pw)

    def configure(**more: str) -> None:
        given = {"URL": slapd.ldap_uri, "BIND_DN": slapd.root_dn, "BIND_PASSWORD_FILE": str(tmp_path / "password")}
        given |= {"USERS": PEOPLE, "GROUPS": GROUPS, **more}
        settings.DIRECTORY = read_directory({f"YARD_LDAP_{name}": value for name, value in given.items()})

    configure(REQUIRED_GROUP=f"cn=yard,{GROUPS}")
    return configure


def sign_in(name: str, password: str = PASSWORD, address: str = "192.0.2.7") -> Client:
    client = Client(REMOTE_ADDR=address)
    client.post("/sign-in", {"username": name, "password": password})
    return client


def who(client: Client) -> str | None:
    key = client.session.get("_auth_user_id")
    return User.objects.get(pk=key).username if key else None


def test_who_is_in_the_directory_and_the_group_gets_an_account(directory: Any) -> None:
    assert who(sign_in("mia")) == "mia"
    user = User.objects.get()
    assert (user.email, len(user.first_name), user.is_staff, user.is_from_directory) == (
        "mia@example.org",
        150,
        False,
        True,
    )
    assert not user.has_usable_password()
    assert who(sign_in("outside")) is None
    assert who(sign_in("mia", "wrong")) is None
    assert who(sign_in("nobody")) is None
    assert User.objects.count() == 1


@pytest.mark.parametrize("name", ["MIA", " mia ", "ｍｉａ", "mi\u0430", "*", "mia)(uid=*", "uid=mia", "m*", "", "böse"])
def test_one_entry_is_one_user_and_names_are_no_filters(directory: Any, name: str) -> None:
    found = who(sign_in(name))
    assert found in {"mia", None}
    assert set(User.objects.values_list("username", flat=True)) <= {"mia"}


def test_the_directory_makes_nobody_somebody_who_is_here_already(directory: Any) -> None:
    boss = User.objects.create_user("Admin", is_superuser=True, is_staff=True)
    assert who(sign_in("admin")) is None
    User.objects.filter(pk=boss.pk).update(is_from_directory=True)
    assert who(sign_in("admin")) == "Admin", "unless an administrator says so"
    User.objects.filter(pk=boss.pk).update(is_active=False)
    assert who(sign_in("admin")) is None


def test_who_has_a_password_here_signs_in_without_it(directory: Any) -> None:
    User.objects.create_user("local", password="a long pass phrase")
    directory(URL="ldap://127.0.0.1:9")
    assert who(sign_in("local", "a long pass phrase")) == "local"
    assert who(sign_in("mia")) is None, "a directory that is away signs nobody in"


def test_groups_give_roles_and_take_them(directory: Any, slapd: Any) -> None:
    Project.objects.create(name="vision")
    directory(PROJECTS="ml=vision:lead,yard=vision:viewer")
    sign_in("mia")
    assert Member.objects.get().role == "lead"
    change = "dn: cn=ml,{0}\nchangetype: modify\nreplace: member\nmember: uid={1},{2}\n"
    slapd.ldapmodify(change.format(GROUPS, "outside", PEOPLE))
    sign_in("mia")
    assert Member.objects.get().role == "viewer"
    slapd.ldapmodify(change.format(GROUPS, "mia", PEOPLE))


def test_guesses_at_the_directory_are_counted_like_all_others(directory: Any) -> None:
    for _ in range(10):
        sign_in("mia", "wrong")
    assert who(sign_in("mia")) is None
    assert who(sign_in("mia", address="198.51.100.9")) == "mia"


def test_nobody_keeps_a_way_in_beside_the_directory(directory: Any) -> None:
    client = sign_in("mia")
    page = client.get("/user").content.decode()
    assert 'name="new"' not in page
    sent = {"new": "a long pass phrase", "again": "a long pass phrase"}
    assert client.post("/user/password", sent).status_code == 422
    assert not User.objects.get().has_usable_password()


GIVEN = {"YARD_LDAP_URL": "ldaps://ldap.example.org", "YARD_LDAP_USERS": PEOPLE}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"YARD_LDAP_URL": "https://x"}, "begins with ldaps://"),
        ({"YARD_LDAP_URL": "ldap://ldap.example.org"}, "in the clear"),
        ({"YARD_LDAP_USERS": ""}, "YARD_LDAP_USERS"),
        ({"YARD_LDAP_REQUIRED_GROUP": "cn=x"}, "YARD_LDAP_GROUPS"),
        ({"YARD_LDAP_BIND_PASSWORD_FILE": "/nowhere"}, "cannot be read"),
        ({"YARD_LDAP_PROJECTS": "x", "YARD_LDAP_GROUPS": GROUPS}, "GROUP=PROJECT:ROLE"),
    ],
)
def test_what_is_wrong_is_said_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: object())
    with pytest.raises(ImproperlyConfigured, match=told):
        read_directory(GIVEN | changed)


def test_without_its_package_a_directory_is_refused_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    assert read_directory({}) is None
    with pytest.raises(ImproperlyConfigured, match=r"switchyard\[ldap\]"):
        read_directory(GIVEN)


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("django_auth_ldap").setLevel(logging.ERROR)
