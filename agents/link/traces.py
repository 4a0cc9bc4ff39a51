"""Traces: profiles of what running parts do, taken on request and sent to the control plane.

The tool runs as an interactive command does (:mod:`agents.link.sessions`): as the part's user, in its view of the host
and within its limits, and it ends with the part. It writes its file where that user may, and passes it on through its
output, so the agent opens no file that a job can exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import shutil
import sys
import tempfile
from typing import IO, Final

import msgspec

from agents.ends import Refusal, clause
from agents.link.seen_orders import SeenOrders
from agents.link.server import Channel, Server, ServerRefused
from agents.link.session_window import Broken
from agents.link.sessions import Sessions, framed, heard, read_end
from agents.protocol import (
    MOST_TRACE_BYTES,
    TRACE_FILE_PATH,
    TRACE_PATH,
    OpenSession,
    Phase,
    SessionEnd,
    TraceNews,
    TraceOrder,
)
from agents.supervisor import session as guest
from agents.tasks.node import NodeTasks
from agents.tasks.part import StartedPart

log = logging.getLogger("switchyard.agent")

MOST: Final = 8
UNTAKEN_S: Final = 60
# After the seconds of the trace: until the tool has begun, and has written.
SPARE_S: Final = 60
_TRIES: Final = 3
_PAUSE_S: Final = 5.0
_LONGEST_SAID: Final = 4_096
_BATCH: Final = 1 << 20
_encode = msgspec.json.Encoder().encode

# Without --nonblocking the stage would stand still for each sample, and without --idle a hang would not be seen.
_PY_SPY: Final = """
file=$(mktemp) || exit 1
"$0" record --format speedscope --nonblocking --idle --subprocesses --duration "$1" --pid "$2" --output "$file" >&2
code=$?
test $code = 0 && cat "$file"
rm -f "$file"
exit $code
"""
_NO_RUNTIME, _SAID_WHY, _UNTAKEN = 93, 94, 95
# The runtime in the stage takes the request away by renaming it, and leaves the trace or a sentence (see its report).
_TORCH: Final = f"""
at=$YARD_TRACE_FILE
test -n "$at" || exit {_NO_RUNTIME}
rm -f "$at" "$at".*
printf %s "$1" >"$at.draft" && mv "$at.draft" "$at" || exit 1
waited=0
while test $waited -lt "$3"; do
    sleep 1
    waited=$((waited + 1))
    if test -e "$at.json.gz"; then cat "$at.json.gz"; rm -f "$at".*; exit 0; fi
    if test -e "$at.why"; then cat "$at.why" >&2; rm -f "$at".*; exit {_SAID_WHY}; fi
    if test $waited -ge "$2" && rm "$at" 2>/dev/null; then exit {_UNTAKEN}; fi
done
rm -f "$at".*
exit 1
"""


class Traces:
    """The traces of one node."""

    def __init__(self, node: NodeTasks, server: Server, sessions: Sessions) -> None:
        self.node = node
        self.server = server
        self.sessions = sessions
        self._inside = 0
        self._seen = SeenOrders()

    def begin(self, orders: list[TraceOrder]) -> None:
        """Begin every new trace."""
        for order in orders:
            if self._seen.is_new(order.id):
                self.node.spawn(self._serve(order))

    async def _serve(self, order: TraceOrder) -> None:
        self._inside += 1
        try:
            await self._take(order)
        except (OSError, http.client.HTTPException, ServerRefused) as error:
            log.info("trace %s of part %s is not told of: %s", order.id, order.part, error)
        finally:
            self._inside -= 1

    async def _take(self, order: TraceOrder) -> None:
        """Take a trace and send it, or tell why there is none. Raises if the control plane does not listen."""
        try:
            part = self._part(order)
            argv = _command(order, part)
            await self._tell(order, TraceNews(state="RUNNING"))
            with tempfile.TemporaryFile(dir=self.node.runs.parent) as file:
                size = await self._run(part, order, argv, file)
                await self._send(order, file, size)
        except Refusal as error:
            told = error.told()
            await self._tell(order, TraceNews(state="FAILED", detail=told["detail"], said=told["said"]))

    def _part(self, order: TraceOrder) -> StartedPart:
        part = self.node.parts.get(order.part)
        if part is None or part.intent.epoch != order.epoch or part.phase != Phase.RUNNING:
            raise Refusal(clause("NotEntered"))
        if self._inside > MOST:
            raise Refusal(clause("NotTracedMany", most=MOST))
        return part

    async def _run(self, part: StartedPart, order: TraceOrder, argv: list[str], file: IO[bytes]) -> int:
        """Run the tool in the part, and write what it puts out to the file; return its size. Raises Refusal."""
        asked = OpenSession(part=order.part, epoch=order.epoch, argv=argv)
        link, words = await self.sessions.enter(part.intent, order.id, asked)
        reader, writer = await asyncio.open_connection(sock=link)
        most_s = order.seconds + SPARE_S + (UNTAKEN_S if order.tool == "torch" else 0)
        try:
            writer.write(framed(guest.ORDER, words))
            async with asyncio.timeout(most_s):
                size, said, end = await _output(reader, file)
        except TimeoutError:
            raise Refusal(clause("TraceTookLong", tool=order.tool, most_s=most_s)) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Refusal(clause("TraceCut")) from None
        except Broken as error:
            raise Refusal(clause("TraceRefused", tool=order.tool, said=str(error))) from None
        finally:
            # This ends the tool, with all that it started.
            writer.close()
        if end.error:
            raise Refusal(end.error)
        _check(order, part, said, end, argv[3])
        if not size:
            raise Refusal(clause("TraceEmpty", tool=order.tool))
        return size

    async def _tell(self, order: TraceOrder, news: TraceNews) -> None:
        with contextlib.closing(Channel(self.server)) as channel:
            await channel.ask("POST", TRACE_PATH.format(trace=order.id), _encode(news))

    async def _send(self, order: TraceOrder, file: IO[bytes], size: int) -> None:
        """Send the file, again if the connection breaks. Raises Refusal if the control plane does not take it."""
        path = TRACE_FILE_PATH.format(trace=order.id)
        for last in range(_TRIES):
            try:
                with contextlib.closing(Channel(self.server, timeout_s=60.0)) as channel:
                    await asyncio.to_thread(channel.call, "POST", path, file, "application/octet-stream", size)
                return
            except ServerRefused as error:
                raise Refusal(clause("TraceNotSent", error=str(error)[:300])) from None
            except (OSError, http.client.HTTPException):
                if last == _TRIES - 1:
                    raise
                await asyncio.sleep(_PAUSE_S)


def _command(order: TraceOrder, part: StartedPart) -> list[str]:
    """Return what takes a trace inside of the part. Raises Refusal."""
    if order.tool == "torch":
        most_s = order.seconds + UNTAKEN_S + SPARE_S
        return ["sh", "-c", _TORCH, "torch", str(order.seconds), str(UNTAKEN_S), str(most_s)]
    if order.tool != "py-spy":
        raise Refusal(clause("NoTool", tool=order.tool))
    is_container = part.intent.executor == "container"
    program = "py-spy" if is_container else py_spy()
    if not program:
        raise Refusal(clause("NoPySpy"))
    # In a container its command is below the first process.
    return ["sh", "-c", _PY_SPY, program, str(order.seconds), "1" if is_container else str(part.pid)]


def py_spy() -> str:
    """Return the path of this host's py-spy: in PATH, or beside the agent's Python; empty if there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


async def _output(reader: asyncio.StreamReader, file: IO[bytes]) -> tuple[int, str, SessionEnd]:
    """Write what a command puts out to the file; return its size, what the command said last, and how it ended.

    Raises Refusal beyond the largest size, Broken, and IncompleteReadError or ConnectionError once it is gone.
    """
    size, said, batch = 0, b"", bytearray()
    while True:
        kind, content = await heard(reader)
        if kind == guest.STDOUT:
            size += len(content)
            if size > MOST_TRACE_BYTES:
                raise Refusal(clause("TraceTooLarge", most_bytes=MOST_TRACE_BYTES))
            batch += content
        elif kind == guest.STDERR:
            said = (said + content)[-_LONGEST_SAID:]
        if batch and (len(batch) >= _BATCH or kind == guest.END):
            await asyncio.to_thread(file.write, bytes(batch))
            batch.clear()
        if kind == guest.END:
            await asyncio.to_thread(file.flush)
            return size, said.decode(errors="replace"), read_end(content)


def _check(order: TraceOrder, part: StartedPart, said: str, end: SessionEnd, program: str) -> None:
    """Raise Refusal if the tool did not end well."""
    if end.code == 0:
        return
    if end.code == _NO_RUNTIME:
        raise Refusal(clause("TraceNoRuntime"))
    if end.code == _UNTAKEN:
        raise Refusal(clause("TraceNoStep", waited_s=UNTAKEN_S))
    if end.code == 127 and part.intent.executor == "container":
        raise Refusal(clause("NoPySpyInImage"))
    if end.code == 126:
        raise Refusal(clause("ToolForbidden", program=program))
    if order.tool == "py-spy" and "permission denied" in said.lower():
        raise Refusal(clause("TraceForbidden"))
    lines = [line.strip().removeprefix("Error: ") for line in said.splitlines() if line.strip()]
    last = "".join(each for each in (lines or [f"it ended with {end.code or end.signal}"])[-1] if each.isprintable())
    raise Refusal(clause("TraceRefused", tool=order.tool, said=last[:300]))
