"""Names, passwords, links, tokens and Authorization headers: whatever is sent is refused, and nothing breaks."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth import authenticate
from django.test import Client, RequestFactory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.accounts import guard, service
from controlplane.accounts.models import User
from controlplane.fleet import service as fleet

FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
ODD = st.one_of(
    st.text(max_size=300),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Co"]), max_size=50),
    st.sampled_from(["", "\x00", "\ud800", "a" * 100_000, "yard_", "yard_" + "é" * 40, "%00", "' OR 1=1 --"]),
)
# What a header can hold: bytes, shown to Python as Latin-1.
HEADER = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=300),
    st.tuples(
        st.sampled_from(["Bearer", "bearer", "Basic", "Node", "Digest", "Bearer yard_", "Bearer  "]),
        st.text(st.characters(max_codepoint=255), max_size=200),
    ).map(" ".join),
    st.tuples(st.uuids(), st.text(st.characters(max_codepoint=255), max_size=80)).map(lambda p: f"Node {p[0]}:{p[1]}"),
)


@pytest.fixture(autouse=True)
def visitor(db: None) -> User:
    return User.objects.create_user("visitor", password="a long pass phrase")


@FIXTURES
@given(name=ODD, password=ODD)
def test_no_odd_name_or_password_gets_in_or_breaks_anything(name: str, password: str) -> None:
    request = RequestFactory(REMOTE_ADDR=str(uuid.uuid4())).get("/")
    assert authenticate(request, username=name, password=password) is None


@FIXTURES
@given(name=ODD, address=ODD)
def test_whoever_claims_to_be_whomever_is_counted(name: str, address: str) -> None:
    one = guard.who(RequestFactory(REMOTE_ADDR=address).get("/"), name)
    assert len(one.name) <= 150
    assert len(one.address) <= 100
    assert {len(one.key(of)) for of in guard.FREE} == {64}


@FIXTURES
@given(secret=ODD, header=HEADER)
def test_no_odd_secret_proves_anybody(secret: str, header: str) -> None:
    assert service.token_of(secret) is None
    assert service.redeem(secret) is None
    assert fleet.authenticate(header) is None
    assert fleet.authenticate(secret) is None
    with pytest.raises(fleet.NodeRefused):
        fleet.enrol(secret, "a")


@FIXTURES
@given(header=HEADER)
def test_no_odd_header_is_answered_by_a_fault(header: str) -> None:
    for path in ("/api/v1/whoami", "/agent/v1/sources"):
        assert Client().get(path, headers={"authorization": header}).status_code in {400, 401}
