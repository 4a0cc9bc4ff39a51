"""What only a container has: an image that is pulled for all to see, an engine that may refuse, and a removal."""

from __future__ import annotations

import json
import os
import signal

import pytest

from agents.protocol import Phase
from agents.runtimes import Unlaunchable, container
from agents.runtimes.container import ContainerExecutor
from agents.supervisor import secret_file
from tests.agents.conformance.conftest import Stand
from tests.agents.yard import order

pytestmark = pytest.mark.parametrize("stand", ["standin"], indirect=True)


def asked(stand: Stand) -> list[list[str]]:
    """The command lines that the engine was given."""
    log = (stand.folder / "bin" / "standin-state" / "asked.log").read_text()
    return [json.loads(line) for line in log.splitlines()]


async def test_a_pull_is_seen_and_done_once(stand: Stand) -> None:
    image = "registry.local/slow:1"
    first = stand.shell("exit 0", image=image)
    pulling = await stand.until(first, lambda seen: "pulls image" in seen.substate)
    assert (pulling.phase, pulling.substate) == (Phase.STARTING, f"pulls image {image}")
    assert (await stand.end(first)).code == 0
    assert (await stand.ran("exit 0", image=image)).code == 0
    assert [line[-1] for line in asked(stand) if line[0] == "pull"] == [image]


async def test_an_image_that_cannot_be_pulled_is_named_with_the_engines_reason(stand: Stand) -> None:
    end = await stand.ran("exit 0", image="registry.local/missing:9")
    assert end.cause == "LAUNCH_FAILED"
    assert 'image "registry.local/missing:9" could not be pulled by podman: ' in end.detail
    assert end.detail.endswith("manifest unknown")
    assert end.code is None


async def test_a_container_that_cannot_be_made_is_a_failed_launch(stand: Stand) -> None:
    end = await stand.ran("exit 0", image="registry.local/broken:1")
    assert end.cause == "LAUNCH_FAILED"
    assert "no space left on device" in end.detail


async def test_a_stop_while_the_image_is_pulled_ends_the_pull(stand: Stand) -> None:
    intent = stand.shell("echo never", image="registry.local/slow:1")
    await stand.until(intent, lambda seen: "pulls image" in seen.substate)
    stand.executor.stop(intent, 5.0, "CANCELLED")
    end = await stand.end(intent)
    assert end.stopped
    assert stand.said(intent) == ""
    assert "create" not in [line[0] for line in asked(stand)]


async def test_a_secret_stands_on_no_command_line(stand: Stand) -> None:
    secrets = {"TOKEN": "canary-4711", "KEY": "canary-4712\nsecond line"}
    intent = stand.shell('echo "$TOKEN $KEY"', env=secrets)
    assert (await stand.end(intent)).code == 0
    assert stand.said(intent) == "*** canary-4712\nsecond line\n"  # of a TOKEN the log shows nothing either
    assert "canary" not in json.dumps(asked(stand))
    assert stand.with_word(intent, "canary") == {"0.out"}
    assert not os.listdir(secret_file.folder(str(stand.folder)))


async def test_an_end_is_told_when_the_container_is_gone_and_not_before(stand: Stand) -> None:
    """Its monitor is killed, so nobody removes the container: the shim does before it tells the end."""
    intent = stand.shell("echo ready; sleep 300")
    await stand.saying(intent, "ready")
    os.kill(stand.shim(intent)["main"], signal.SIGKILL)
    assert (await stand.end(intent)).signal == signal.SIGKILL
    assert [line for line in asked(stand) if line[0] == "rm"]
    assert stand.left(intent) == []
    assert stand.executor.look(intent).phase == Phase.ENDED


async def test_what_is_not_wholly_prepared_does_not_look_ready(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent dies while it makes the part ready: what its monitor is to do was not written yet."""

    class Died(BaseException):
        """The process is no more."""

    def die(*_: object) -> None:
        raise Died

    wanted = order("halfway", "true", image=stand.image)
    intent = stand.intent(wanted)
    monkeypatch.setattr(container, "write_whole", die)
    with pytest.raises(Died):
        stand.executor.prepare(wanted, intent)
    monkeypatch.undo()
    assert stand.executor.look(intent).is_orphan
    assert stand.executor.reap(intent).cause == "SUPERVISOR_LOST"


async def test_a_variable_that_would_steer_the_engine_is_refused(stand: Stand) -> None:
    wanted = order("steers", "true", image=stand.image, env={"DOCKER_HOST": "tcp://a\nb"})
    with pytest.raises(Unlaunchable, match="DOCKER_HOST cannot have several lines"):
        stand.executor.prepare(wanted, stand.intent(wanted))


async def test_what_names_no_image_is_refused_here_too(stand: Stand) -> None:
    wanted = order("oddimage", "true", image="--privileged")
    with pytest.raises(Unlaunchable, match="names no container image"):
        stand.executor.prepare(wanted, stand.intent(wanted))


async def test_a_node_without_an_engine_says_so(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert isinstance(stand.executor, ContainerExecutor)
    stand.executor._engine = None
    wanted = order("noengine", "true", image=stand.image)
    with pytest.raises(Unlaunchable, match=r"this node runs no containers: .*podman is not on the agent's PATH"):
        stand.executor.prepare(wanted, stand.intent(wanted))
