"""What every executor promises of a part, whatever the part does: how it ends is told, and nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from agents.link.server import Server
from agents.link.sessions import Sessions
from agents.protocol import OpenSession, Phase
from agents.resources import adjust
from agents.resources.adjust import Setting
from agents.runtimes import Unlaunchable
from agents.supervisor import procfs, secret_file, session
from agents.tasks.journal import Intent, Journal
from agents.tasks.node import NodeTasks
from tests.agents.conformance.conftest import Stand, environment_of, mounted, unmount
from tests.agents.yard import order

SERVER = Server("http://127.0.0.1:1")


@pytest.mark.parametrize(("code", "cause"), [(0, ""), (3, "EXIT_CODE"), (85, "CHECKPOINTED")])
async def test_an_exit_code_is_told_as_it_was(stand: Stand, code: int, cause: str) -> None:
    end = await stand.ran(f"exit {code}")
    assert (end.code, end.signal, end.cause, end.stopped) == (code, None, cause, False), end


@pytest.mark.parametrize("name", ["SEGV", "KILL"])
async def test_a_signal_that_ended_it_is_named(stand: Stand, name: str) -> None:
    """A container's engine tells signals as a shell does, as 128 + n; plain processes tell them as they are."""
    number = signal.Signals[f"SIG{name}"]
    # In a container the first process is the engine's own init; what it runs may be ended by anything.
    end = await stand.ran(f"kill -{name} $$")
    assert (end.code, end.signal) == ((128 + number, None) if stand.in_container else (None, number)), end
    assert f"SIG{name}" in end.detail


async def test_one_that_ignores_sigterm_is_killed_after_its_grace(stand: Stand) -> None:
    intent = stand.shell('trap "" TERM; echo ready; while :; do sleep 0.05; done')
    await stand.saying(intent, "ready")
    stand.executor.stop(intent, 1.0, "CANCELLED")
    end = await stand.end(intent)
    assert end.stopped
    assert end.signal == signal.SIGKILL or end.code == 128 + signal.SIGKILL
    assert stand.left(intent) == []


async def test_a_stop_is_told_by_file_and_signal_and_an_exit_0_after_it_is_a_stop(stand: Stand) -> None:
    intent = stand.shell('trap "cat $YARD_STOP_FILE; exit 0" TERM; echo ready; while :; do sleep 0.02; done')
    await stand.saying(intent, "ready")
    stand.executor.stop(intent, 20.0, "PREEMPTED")
    end = await stand.end(intent)
    assert (end.code, end.cause, end.stopped) == (0, "", True), end
    assert json.loads(stand.said(intent).splitlines()[1]) == {"reason": "PREEMPTED", "deadline_s": 20.0, "save": False}


async def test_another_signal_reaches_the_command(stand: Stand) -> None:
    intent = stand.shell('trap "echo heard; exit 4" USR1; echo ready; while :; do sleep 0.02; done')
    await stand.saying(intent, "ready")
    stand.executor.signal(intent, "SIGUSR1")
    end = await stand.end(intent)
    assert end.code == 4, end
    assert "heard" in stand.said(intent)


async def test_daemons_of_a_double_fork_in_sessions_of_their_own_end_with_it(stand: Stand) -> None:
    daemon = "setsid sh -c '(sleep 300; :) & (env -i sleep 300; :) & echo $! >> pids' &"
    intent = stand.shell(f"{daemon} {daemon} sleep 0.3; ps -e >/dev/null 2>&1; exit 0")
    end = await stand.end(intent)
    assert end.code == 0, end
    assert stand.left(intent) == []
    shim = stand.shim(intent)["pid"]
    assert procfs.descendants(shim) == []
    # Without a pid namespace the numbers that the daemons wrote down are the host's.
    if stand.kind == "process":
        told = stand.read(intent, "work/pids").split()
        assert len(told) == 2
        assert [pid for pid in told if procfs.start_time(int(pid)) is not None] == []


async def test_a_flood_of_output_is_kept_whole_and_blocks_nobody(stand: Stand) -> None:
    size = 8 << 20
    intent = stand.shell(f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2; exit 5")
    end = await stand.end(intent)
    assert end.code == 5
    assert [os.stat(f"{intent.folder}/0.{stream}").st_size for stream in ("out", "err")] == [size, size]


async def test_a_command_that_is_not_there_is_named(stand: Stand) -> None:
    end = await stand.end(stand.launch("no-such-command-here"))
    assert end.cause == "LAUNCH_FAILED", end
    assert "no-such-command-here" in end.detail
    assert "not found" in end.detail


async def test_a_working_folder_that_is_a_link_is_the_folder_it_points_to(stand: Stand) -> None:
    """The folders of a part may lie behind a link, as on hosts whose scratch disk is linked into place."""
    real = stand.folder / "disk"
    real.mkdir()
    (stand.folder / "linked").symlink_to(real)
    wanted = order("linkedpart" + os.urandom(4).hex(), "sh", "-c", "pwd -P; echo x > kept", image=stand.image)
    intent = stand.intent(wanted, stand.folder / "linked")
    stand.executor.prepare(wanted, intent)
    stand.executor.launch(intent)
    end = await stand.end(intent)
    assert end.code == 0, (end, stand.said(intent, "err"))
    assert (real / wanted.part / "work" / "kept").exists()


async def test_a_library_that_the_job_preloads_stays_with_the_job(stand: Stand) -> None:
    """LD_PRELOAD of a job must not reach its supervisors, which may have other rights."""
    missing = "/nowhere/liboops.so"
    intent = stand.shell('echo "$LD_PRELOAD" ready; sleep 300', env={"LD_PRELOAD": missing})
    await stand.saying(intent, f"{missing} ready")
    shim = stand.shim(intent)
    supervisors = {shim["pid"], shim["main"]} if stand.in_container else {shim["pid"]}
    for pid in supervisors:
        assert missing.encode() not in environment_of(pid)


async def test_what_a_job_marks_as_secret_is_in_no_log(stand: Stand) -> None:
    intent = stand.shell('echo "pin $PIN"; echo "$PIN" >&2', env={"PIN": "4711-4712"}, secrets=["PIN"])
    assert (await stand.end(intent)).code == 0
    assert (stand.said(intent), stand.said(intent, "err")) == ("pin ***\n", "***\n")


async def test_secrets_are_given_to_the_command_and_lie_in_no_file_but_its_own(stand: Stand) -> None:
    """A variable, one of several lines, and a file; once it has ended no file has any of them."""
    env, files = {"API_TOKEN": "canary-4711", "A_SECRET": "canary-4712\ncanary-4713"}, {"KEY_FILE": "canary-4714\n"}
    script = 'stat -c "%a %U" "$KEY_FILE"; echo "$API_TOKEN $A_SECRET"; cat "$KEY_FILE"; echo ready; sleep 300'
    intent = stand.shell(script, env=env, secret_files=files)
    await stand.saying(intent, "ready")
    assert stand.said(intent).split("\n", 1)[1] == "*** ***\n***\nready\n"
    assert stand.said(intent).startswith("400 ")

    assert stand.with_word(intent, "canary") == {"KEY_FILE"}
    stand.executor.stop(intent, 0.0, "CANCELLED")
    await stand.end(intent)
    assert stand.with_word(intent, "canary") == set()
    assert not os.listdir(secret_file.folder(str(stand.folder)))


async def test_a_part_whose_secrets_are_gone_is_not_started(stand: Stand) -> None:
    """The host lost its memory, or somebody removed them, before the supervisor took them."""
    wanted = order(uuid.uuid4().hex, "sh", "-c", "echo ran", env={"API_TOKEN": "canary-4711"}, image=stand.image)
    intent = stand.intent(wanted)
    stand.executor.prepare(wanted, intent)
    stand.lose_secrets(intent)
    stand.executor.launch(intent)
    end = await stand.end(intent)
    assert (end.cause, end.detail) == ("LAUNCH_FAILED", "the values of its secrets are not there any more")
    assert stand.said(intent) == ""


async def test_odd_variables_arrive_as_they_are(stand: Stand) -> None:
    odd = {"A": "a b  c", "B": "'\"$HOME`x`\\", "C": "first\nsecond=3\n", "D": "ключ 鍵", "E": "", "F": "#x"}
    intent = stand.shell("env -0", env=odd)
    assert (await stand.end(intent)).code == 0
    told = dict(each.split("=", 1) for each in stand.said(intent).split("\0") if "=" in each)
    assert {name: told.get(name) for name in odd} == odd


async def test_nothing_of_the_agents_environment_leaks(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_SECRET_OF_THE_AGENT", "canary-of-the-agent")
    intent = stand.shell("env; cat /proc/$PPID/environ; exit 0")
    await stand.end(intent)
    assert "canary-of-the-agent" not in stand.said(intent) + stand.said(intent, "err")


async def test_a_new_agent_takes_over_what_runs(stand: Stand) -> None:
    intent = stand.shell("echo ready; while [ ! -e go ]; do sleep 0.02; done; exit 9")
    await stand.saying(intent, "ready")
    before = await stand.running(intent)
    assert stand.parent is not None
    stand.parent.close()
    stand.executor = stand.again()
    after = stand.executor.look(intent)
    assert (after.phase, after.pid, after.pid_start) == (Phase.RUNNING, before.pid, before.pid_start)
    assert not after.is_orphan
    stand.touch(intent, "work/go")
    assert (await stand.end(intent)).code == 9


async def test_a_lost_supervisor_is_told_and_what_it_left_is_ended(stand: Stand) -> None:
    intent = stand.shell("echo ready; sleep 300 & sleep 300")
    await stand.saying(intent, "ready")
    shim = stand.shim(intent)["pid"]
    os.kill(shim, signal.SIGKILL)
    end = await stand.end(intent)
    assert end.cause == "SUPERVISOR_LOST", end
    assert stand.left(intent) == []


async def test_more_memory_than_asked_for_ends_it(stand: Stand) -> None:
    greedy = "import time; x = []\nwhile True: x.append(bytearray(8 << 20)); time.sleep(0.005)"
    if stand.kind == "podman":
        # An image need not have Python in it.
        end = await stand.ran('x=$(head -c 300000000 /dev/zero | tr "\\0" a); echo ${#x}', memory_bytes=96 << 20)
        assert end.cause == "OUT_OF_MEMORY", end
        return
    end = await stand.end(stand.launch(sys.executable, "-c", greedy, memory_bytes=96 << 20))
    assert end.cause == "OUT_OF_MEMORY", end
    assert "96 MiB" in end.detail


async def test_the_time_limit_ends_it(stand: Stand) -> None:
    intent = stand.shell("sleep 300", time_limit_s=1.5, grace_s=5.0)
    end = await stand.end(intent)
    assert end.cause == "TIMEOUT", end
    assert "1.5 s" in end.detail
    assert stand.left(intent) == []


async def test_a_full_disk_stops_no_reader_and_hides_no_end(stand: Stand) -> None:
    """The run folder's disk is full, the command talks on: it never blocks, and its end is known."""
    small = stand.folder / "small"
    if not mounted(small, "256k"):
        pytest.skip("needs root, to mount a small file system")
    try:
        stand.folder = small
        intent = stand.shell("head -c 4000000 /dev/zero; echo done > /dev/null; sleep 0.2; exit 6")
        filled = False
        while (seen := stand.executor.look(intent)).phase != Phase.ENDED:
            if os.statvfs(small).f_bavail == 0:
                filled = True
                await asyncio.sleep(0.3)
                os.truncate(f"{intent.folder}/0.out", 0)  # somebody makes room
            await asyncio.sleep(0.01)
        assert seen.exit is not None
        assert (filled, seen.exit.code) == (True, 6), seen
        await asyncio.to_thread(stand.executor.discard, intent)
    finally:
        stand.intents.clear()
        unmount(small)


async def test_a_fork_bomb_is_outrun_when_it_is_stopped(stand: Stand) -> None:
    bomb = "while :; do (sleep 0.2 & sleep 0.1 & :); n=$((n+1)); [ $((n % 50)) = 1 ] && echo forking; done"
    intent = stand.shell(f'trap "" TERM; {bomb}')
    await stand.saying(intent, "forking")
    stand.executor.stop(intent, 0.0, "CANCELLED")
    end = await stand.end(intent)
    assert end.stopped
    assert stand.left(intent) == []
    assert procfs.descendants(stand.shim(intent)["pid"]) == []


async def test_a_stop_on_the_heels_of_a_start_leaves_nothing(stand: Stand) -> None:
    intents = [stand.shell("sleep 300") for _ in range(3)]
    for count, intent in enumerate(intents):
        await asyncio.sleep(0.03 * count)
        stand.executor.stop(intent, 2.0, "CANCELLED")
    for intent in intents:
        end = await stand.end(intent)
        assert end.stopped, end
        assert stand.left(intent) == []


async def test_a_running_part_moves_to_other_cores_stops_and_goes_on(stand: Stand) -> None:
    """An adjustment reaches every process of the part, in a container too, and its supervisor stays awake."""
    intent = stand.shell("sleep 300 & while :; do echo x; sleep 0.02; done")
    await stand.saying(intent, "x")
    reach, core = stand.executor.reach(intent), min(os.sched_getaffinity(0))
    assert await asyncio.to_thread(adjust.apply, reach, Setting(), Setting(cpus=(core,), suspended=True)) == []
    marked = stand.left(intent)
    assert marked
    assert {frozenset(os.sched_getaffinity(pid)) for pid in marked} == {frozenset({core})}
    said = stand.said(intent)
    await asyncio.sleep(0.3)
    assert len(stand.said(intent)) <= len(said) + 4  # what was in the pipe already
    assert await asyncio.to_thread(adjust.resume, reach) == []
    size = len(stand.said(intent))
    await stand.until(intent, lambda _: len(stand.said(intent)) > size + 8)


async def test_a_part_is_prepared_once(stand: Stand) -> None:
    wanted = order("oncepart" + os.urandom(4).hex(), "true", image=stand.image)
    intent = stand.intent(wanted)
    stand.executor.prepare(wanted, intent)
    with pytest.raises(Unlaunchable, match="may have run before"):
        stand.executor.prepare(wanted, intent)


async def test_what_it_writes_lies_where_the_node_looks(stand: Stand, tmp_path: Path) -> None:
    """Work, reports, checkpoints and outputs have one path, inside and outside."""
    checkpoints, outputs = tmp_path / "shared" / "ckpt", tmp_path / "shared" / "out"
    script = 'echo w > here; echo c > "$YARD_CHECKPOINT_DIR/c"; echo o > "$YARD_OUTPUT_DIR/o"'
    script += '; echo "{}" >> "$YARD_REPORT_FILE"'
    intent = stand.shell(script, checkpoint_dir=str(checkpoints), output_dir=str(outputs))
    end = await stand.end(intent)
    assert end.code == 0, (end, stand.said(intent, "err"))
    assert [path.exists() for path in (checkpoints / "c", outputs / "o", Path(intent.folder) / "work/here")] == [
        True,
        True,
        True,
    ]
    assert stand.read(intent, "report.jsonl") == "{}\n"


async def entered(stand: Stand, intent: Intent, script: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The agent's end of a session in a part."""
    node = NodeTasks("n", stand.folder, Journal(stand.folder / "journal.jsonl"), stand.executor, procfs.boot_id())
    name, asked = str(uuid.uuid4()), OpenSession(intent.part, intent.epoch, ["sh", "-c", script])
    order = stand.executor.guest(intent, name, asked)
    reader, writer = await asyncio.open_connection(sock=await Sessions(node, SERVER)._let_in(intent, name))
    content = json.dumps(order).encode()
    writer.write(session.HEAD.pack(session.ORDER, len(content)) + content)
    await writer.drain()
    return reader, writer


async def heard(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        kind, length = session.HEAD.unpack(await reader.readexactly(session.HEAD.size))
        return kind, await reader.readexactly(length)


async def test_somebody_who_enters_has_what_it_has_and_their_exit_code_is_told(stand: Stand) -> None:
    intent = stand.shell("echo ready; sleep 300", env={"COLOUR": "blue"})
    await stand.saying(intent, "ready")
    reader, writer = await entered(stand, intent, 'echo "$COLOUR $YARD_PART_ID"; pwd; exit 5')
    said = b""
    while (message := await heard(reader))[0] != session.END:
        said += message[1]
    assert said.decode().split() == ["blue", intent.part, f"{intent.folder}/work"]
    assert json.loads(message[1])["code"] == 5
    writer.close()


async def test_somebody_who_enters_ends_with_it_and_when_they_leave(stand: Stand) -> None:
    intent = stand.shell("echo ready; exec sleep 300")  # no process of its own begins after the word
    await stand.saying(intent, "ready")
    alone = set(stand.left(intent))
    reader, writer = await entered(stand, intent, "(setsid sleep 301 &) ; trap '' HUP TERM; echo in; sleep 302")
    assert (await heard(reader))[1] == b"in\n"
    writer.close()
    async with asyncio.timeout(30):
        while set(stand.left(intent)) - alone:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)
    assert stand.executor.look(intent).phase == Phase.RUNNING
    reader, writer = await entered(stand, intent, "(setsid sleep 303 &) ; trap '' HUP TERM; echo in; sleep 304")
    assert (await heard(reader))[1] == b"in\n"
    stand.executor.stop(intent, 0.0, "CANCELLED")
    await stand.end(intent)
    assert stand.left(intent) == []
    writer.close()
