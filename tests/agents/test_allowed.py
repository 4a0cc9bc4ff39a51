"""What the control plane may name as storage on a host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.isolation.allowed import OF_THE_SYSTEM, Allowed
from tests.agents.conftest import Hands
from tests.agents.yard import order

Names = Callable[[], str]
steps = st.lists(st.sampled_from(["a", "etc", "data", "..", ".", "", "shared"]), max_size=6)


@given(steps)
def test_only_what_lies_below_a_root_is_let_be_named(rest: list[str]) -> None:
    path = "/" + "/".join(rest)
    allowed = Allowed(["/data", "/a/shared"])
    if not allowed.refuses(path):
        assert ".." not in path.split("/")
        clean = Path(os.path.normpath("/" + path.lstrip("/")))
        assert clean.is_relative_to("/data") or clean.is_relative_to("/a/shared")


@pytest.mark.parametrize("path", ["/", "//", "relative", "/data/../etc", "/etc/", "//etc", "/usr/lib", *OF_THE_SYSTEM])
def test_what_is_never_given_by_itself(path: str) -> None:
    assert Allowed().refuses(path)
    assert Allowed(own="/etc/agent").refuses(path)


def test_the_agents_own_folder_and_any_other_are_let_be_named() -> None:
    assert not Allowed(["/data"], own="/state/local").refuses("/state/local/7/checkpoints/train")
    assert Allowed(["/data"], own="/state/local").refuses("/state/node.json")
    assert not Allowed().refuses("/mnt/shared/7")
    assert not Allowed().refuses("/etcetera")


def test_an_agent_refuses_with_a_sentence(hands: Hands, part: Names) -> None:
    hands.start("--storage-below", "/mnt/pools")
    name = part()
    hands.yard.want(hands.name, order(name, "true", checkpoint_dir="/tmp/elsewhere/7"))
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "LAUNCH_FAILED"
    assert end.detail == 'this node does not let "/tmp/elsewhere/7" be used as storage; accepted are /mnt/pools'
    assert not Path("/tmp/elsewhere").exists()
