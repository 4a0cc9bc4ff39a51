"""A node's credential: revoked or made anew it closes the open connection, and no token of a pool takes a node over."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from channels.layers import channel_layers
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from django.urls import reverse

from agents.protocol import CLOSE_UNAUTHENTICATED, Desired, InventoryRef, Report
from controlplane.accounts.models import User
from controlplane.asgi import application
from controlplane.fleet import service as fleet
from controlplane.fleet.models import JoinToken, Node
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import NodeState
from tests.controlplane.test_feed import rows

WAIT_S = 15


@pytest.fixture
def pool(transactional_db: None, servers: Any, monkeypatch: pytest.MonkeyPatch) -> Pool:
    # The threads of a server keep their connections; those of a test would outlive it.
    monkeypatch.setattr("controlplane.dispatch.agent_socket.close_old_connections", connections.close_all)
    channel_layers.backends.clear()  # a layer belongs to one event loop, and each test has its own
    return Pool.objects.create(name="default")


@asynccontextmanager
async def link(node: Node, credential: str) -> AsyncIterator[ApplicationCommunicator]:
    """The agents' door as a server opens it."""
    header = f"Node {node.id}:{credential}".encode()
    scope = {"type": "websocket", "path": "/agent/v1/link", "headers": [(b"authorization", header)], "subprotocols": []}
    communicator = ApplicationCommunicator(application, scope)
    await communicator.send_input({"type": "websocket.connect"})
    try:
        yield communicator
    finally:
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait(WAIT_S)


async def closes(communicator: ApplicationCommunicator) -> int:
    while (output := await communicator.receive_output(WAIT_S))["type"] != "websocket.close":
        pass
    return int(output["code"])


def by_administrator(node: Node) -> None:
    fleet.revoke(node)


def by_joining_again(node: Node) -> None:
    fleet.enrol(fleet.make_return_token(node), node.name)


def by_hand(node: Node) -> None:
    """A row that something else changed, with no hint to anybody."""
    Node.objects.filter(id=node.id).update(credential_digest="something else")


def by_deleting(node: Node) -> None:
    Node.objects.filter(id=node.id).delete()


@pytest.mark.parametrize("act", [by_administrator, by_joining_again, by_hand, by_deleting])
async def test_an_open_connection_ends_with_its_credential(pool: Pool, act: Any) -> None:
    node, credential = await rows(fleet.enrol, await rows(fleet.make_join_token, pool), "a")
    other, others = await rows(fleet.enrol, await rows(fleet.make_join_token, pool), "b")
    async with link(node, credential) as own, link(other, others) as beside:
        for communicator in (own, beside):
            assert (await communicator.receive_output(WAIT_S))["type"] == "websocket.accept"
        await rows(act, node)
        assert await closes(own) == CLOSE_UNAUTHENTICATED
        assert await beside.receive_nothing(), "the others' connections stay"
    async with link(node, credential) as again:
        assert await closes(again) == CLOSE_UNAUTHENTICATED
    answer = await rows(
        Client().post,
        "/agent/v1/logs",
        b"",
        "application/msgpack",
        headers={"authorization": f"Node {node.id}:{credential}"},
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("state", list(NodeState))
@pytest.mark.parametrize("reported", [True, False])
def test_no_token_of_a_pool_takes_a_node_over(pool: Pool, state: NodeState, reported: bool) -> None:
    node, credential = fleet.enrol(fleet.make_join_token(pool), "a")
    Node.objects.filter(id=node.id).update(state=state, last_report_at=node.created_at if reported else None)
    token = fleet.make_join_token(pool)
    with pytest.raises(fleet.NodeRefused, match=r"is here already \(\w+\).*join_token --node a"):
        fleet.enrol(token, "a")
    assert fleet.authenticate(f"Node {node.id}:{credential}") == node
    assert fleet.enrol(token, "b")[0].name == "b", "a refusal uses nothing up"


def test_a_revoked_name_is_free_for_nobody_but_by_its_own_token(pool: Pool) -> None:
    node, credential = fleet.enrol(fleet.make_join_token(pool), "a")
    early = fleet.make_return_token(node)
    fleet.revoke(node)
    assert fleet.authenticate(f"Node {node.id}:{credential}") is None
    for token in (fleet.make_join_token(pool), early):
        with pytest.raises(fleet.NodeRefused):
            fleet.enrol(token, "a")
    again, fresh = fleet.enrol(fleet.make_return_token(node), "a")
    assert again == node
    assert fleet.authenticate(f"Node {node.id}:{fresh}") == node


def test_a_node_that_was_installed_anew_joins_by_one_command(pool: Pool) -> None:
    node, credential = fleet.enrol(fleet.make_join_token(pool), "a")
    Node.objects.filter(id=node.id).update(state=NodeState.DRAINED, reason="memory (root)")
    said = io.StringIO()
    call_command("join_token", "--node", "a", stdout=said)
    token = said.getvalue().strip()
    with pytest.raises(fleet.NodeRefused, match="made for another node"):
        fleet.enrol(token, "b")
    assert not Node.objects.filter(name="b").exists()
    again, fresh = fleet.enrol(token, "a")
    assert (again.id, again.state, again.reason) == (node.id, NodeState.DRAINED, "memory (root)")
    assert fleet.authenticate(f"Node {node.id}:{credential}") is None
    assert fleet.authenticate(f"Node {node.id}:{fresh}") == node
    with pytest.raises(fleet.NodeRefused, match="used up"):
        fleet.enrol(token, "a")
    with pytest.raises(CommandError, match="there is no node c"):
        call_command("join_token", "--node", "c")


def test_the_administration_revokes_and_lets_in_again(pool: Pool) -> None:
    node, credential = fleet.enrol(fleet.make_join_token(pool), "a")
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    chosen = {"_selected_action": [str(node.id)]}
    page = root.post(reverse("admin:fleet_node_changelist"), {**chosen, "action": "revoke"}, follow=True)
    assert "is refused from now on" in page.content.decode()
    assert fleet.authenticate(f"Node {node.id}:{credential}") is None
    page = root.post(reverse("admin:fleet_node_changelist"), {**chosen, "action": "make_return_token"}, follow=True)
    token = page.content.decode().partition("shown this once: ")[2][:43]
    assert fleet.enrol(token, "a")[0] == node
    assert JoinToken.objects.get(node=node).uses_left == 0
    assert root.get(reverse("admin:fleet_jointoken_changelist")).status_code == 200


def test_a_new_credential_takes_over_when_it_is_used_and_not_before(pool: Pool) -> None:
    node, old = fleet.enrol(fleet.make_join_token(pool), "a")
    assert not fleet.standing({node.id})[node.id].is_rotation_due
    fleet.rotate(node, "ada")
    assert fleet.standing({node.id})[node.id].is_rotation_due
    # Each may have been lost on its way, and any of them may be what the agent has kept.
    lost, kept = fleet.next_credential(node.id), fleet.next_credential(node.id)
    assert fleet.authenticate(f"Node {node.id}:{old}") == node, "nothing was used yet"
    assert fleet.authenticate(f"Node {node.id}:{kept}") == node
    assert fleet.authenticate(f"Node {node.id}:{kept}") == node
    for dead in (old, lost, "", "x"):
        assert fleet.authenticate(f"Node {node.id}:{dead}") is None
    assert not fleet.standing({node.id})[node.id].is_rotation_due


def test_what_was_offered_is_bounded_and_dies_with_a_revocation(pool: Pool) -> None:
    node, _ = fleet.enrol(fleet.make_join_token(pool), "a")
    offered = [fleet.next_credential(node.id) for _ in range(3 * fleet.MOST_OFFERED)]
    assert len(Node.objects.get().offered_digests) == fleet.MOST_OFFERED
    assert fleet.authenticate(f"Node {node.id}:{offered[0]}") is None
    fleet.revoke(node)
    for secret in offered:
        assert fleet.authenticate(f"Node {node.id}:{secret}") is None
    assert fleet.next_credential(node.id) == ""
    with pytest.raises(fleet.NodeRefused, match="revoked"):
        fleet.rotate(Node.objects.get(), "ada")


async def test_an_agent_is_sent_one_with_its_report_and_its_old_link_ends_once_it_is_used(pool: Pool) -> None:
    node, old = await rows(fleet.enrol, await rows(fleet.make_join_token, pool), "a")
    await rows(fleet.rotate, node, "ada")
    report = Report(
        proto=1, agent="1.0.0", boot_id="b", start_seq=1, seq=1, seen_generation=0, inventory=InventoryRef(hash="h")
    )
    async with link(node, old) as own:
        assert (await own.receive_output(WAIT_S))["type"] == "websocket.accept"
        sent = ""
        for seq in range(1, 200):
            message = msgspec.json.encode(msgspec.structs.replace(report, seq=seq)).decode()
            await own.send_input({"type": "websocket.receive", "text": message})
            answer = msgspec.json.decode((await own.receive_output(WAIT_S))["text"], type=Desired)
            if sent := answer.credential:
                break
            await asyncio.sleep(0.1)
        assert sent, "it is due, and a report was answered"
        assert await rows(fleet.authenticate, f"Node {node.id}:{sent}") == node
        assert await closes(own) == CLOSE_UNAUTHENTICATED
