"""A proxy between an agent and its control plane, on which every kind of partition can be had."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

UP, DOWN = "up", "down"


class Partition:
    """A TCP proxy to a port of this host, or to whichever of several listens, in turn.

    What is held back arrives when the partition heals, as it does on a wire.
    """

    def __init__(self, *targets: int) -> None:
        self.targets = deque(targets)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self._links: set[asyncio.StreamWriter] = set()
        is_up = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=[is_up], daemon=True)
        self._thread.start()
        assert is_up.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def block(self, *directions: str) -> None:
        for direction in directions:
            self._loop.call_soon_threadsafe(self._open[direction].clear)

    def heal(self) -> None:
        for event in self._open.values():
            self._loop.call_soon_threadsafe(event.set)

    def cut(self) -> None:
        """Break every connection; new ones are taken."""

        def abort() -> None:
            for link in self._links:
                link.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self, is_up: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        for event in self._open.values():
            event.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._take, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        is_up.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(len(self.targets)):
            self.targets.rotate()
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.targets[0])
                break
            except OSError:
                continue
        else:
            writer.close()
            return
        self._links |= {writer, far_writer}
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the end of the test; Python 3.11 would log it
                await asyncio.gather(self._pump(reader, far_writer, UP), self._pump(far_reader, writer, DOWN))
        finally:
            self._links -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                await self._open[direction].wait()
                sink.write(piece)
                await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()
