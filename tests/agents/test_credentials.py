"""A node goes over to a new credential without a person, and finds back to one that knows only the former."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agents.link import enrol
from agents.link.enrol import Credentials
from agents.protocol import Enrolled
from tests.agents.conftest import Hands

ONE, TWO = "first-secret-of-the-node", "second-secret-of-the-node"


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    enrolled = Enrolled("node-1", "a", ONE)
    enrol.remember(tmp_path, enrolled)
    return Credentials(tmp_path, enrolled)


def test_a_new_one_is_on_disk_before_it_is_used(credentials: Credentials, tmp_path: Path) -> None:
    assert credentials.take(TWO)
    assert credentials.identity.text == f"node-1:{TWO}"
    kept = enrol.remembered(tmp_path)
    assert kept == Enrolled("node-1", "a", TWO, former=ONE)
    assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o600
    assert not credentials.take(TWO), "again is nothing new"


@pytest.mark.parametrize("nonsense", ["", "short", "x" * 201, "with spaces in it, and long", "line\nbreak" * 4])
def test_what_is_no_credential_is_passed_over(credentials: Credentials, nonsense: str) -> None:
    assert not credentials.take(nonsense)
    assert credentials.identity.text == f"node-1:{ONE}"


def test_one_that_cannot_be_kept_is_not_used(credentials: Credentials, tmp_path: Path) -> None:
    (tmp_path / "node.json.draft").mkdir()
    with pytest.raises(OSError, match="directory"):
        credentials.take(TWO)
    assert credentials.identity.text == f"node-1:{ONE}"
    assert enrol.remembered(tmp_path) == Enrolled("node-1", "a", ONE)


def test_after_a_refusal_the_former_is_tried_and_then_this_one_again(credentials: Credentials) -> None:
    assert not credentials.fall_back(), "there is none before the first"
    credentials.take(TWO)
    assert credentials.fall_back()
    assert credentials.identity.text == f"node-1:{ONE}"
    assert credentials.fall_back()
    assert credentials.identity.text == f"node-1:{TWO}"


def test_an_agent_goes_over_while_it_runs_and_its_next_start_has_the_new_one(hands: Hands) -> None:
    hands.start()
    yard, (side,) = hands.yard, hands.sides
    node = next(name for name, each in yard.sides.items() if each is side)
    yard.offered[node] = TWO
    yard.want(hands.name)
    yard.wait(lambda: yard.credentials[node] == TWO)
    assert node not in yard.offered
    hands.end()
    hands.start()
    # A control plane that was restored knows the one before.
    hands.end()
    first = enrol.remembered(hands.state)
    assert first is not None
    yard.credentials[node] = first.former
    hands.start()
