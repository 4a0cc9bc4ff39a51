"""``python -m router``: carries requests for services to their replicas. See docs/how-to/services.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Final

from router import probes, rouse
from router.calls import Calls
from router.control_link import ControlLink
from router.front import Front, Kept
from router.keys import Keys
from router.pool import Pools
from router.routing import Routing

log = logging.getLogger("switchyard.router")
MOST_CONNECTIONS: Final = 20_000
KEPT_BYTES: Final = 256 * 2**20
DRAIN_S: Final = 30.0


async def sweep(fronts: set[Front]) -> None:
    """Cut the connections that are past their deadline, once a second."""
    while True:
        await asyncio.sleep(1.0)
        now = time.monotonic()
        for front in [one for one in fronts if now > one.deadline]:
            front.abort()


async def serve(options: argparse.Namespace, secret: str) -> None:
    """Serve until a signal; answers that have begun are finished first, within a bound."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    link = ControlLink(options.control, secret, options.name)
    pools, fronts, kept = Pools(), set[Front](), Kept(KEPT_BYTES)
    routing = Routing(pools, Keys(link.caller), kept)
    works = (link.keep(pools), probes.keep(pools), rouse.keep(pools, link), Calls(link, routing, pools).keep())
    most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    server = await loop.create_server(
        lambda: Front(routing.answer, routing.limit, fronts, kept, most), options.host, options.port, backlog=1024
    )
    tasks = [asyncio.create_task(work) for work in (*works, sweep(fronts))]
    log.info("the router listens on %s:%d", options.host, options.port)
    await asyncio.wait([asyncio.create_task(over.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
    server.close()
    busy = [front.task for front in fronts if front.task is not None]
    if busy:
        await asyncio.wait(busy, timeout=DRAIN_S)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    for front in list(fronts):
        front.abort()


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="router", description="Carries requests for services to their replicas.")
    parser.add_argument("--control", default=os.environ.get("YARD_URL", ""), help="address of the control plane")
    parser.add_argument(
        "--key-file", default=os.environ.get("YARD_ROUTER_KEY_FILE", ""), help="file with the router's own secret"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8480, help="TCP port (default: %(default)s)")
    parser.add_argument("--name", default=socket.gethostname()[:63], help="a name for this router")
    return parser


def main() -> None:
    """Parse the command line and serve."""
    parser = command_line()
    options = parser.parse_args()
    if not options.control or not options.key_file:
        parser.error("--control and --key-file are needed, or YARD_URL and YARD_ROUTER_KEY_FILE")
    logging.basicConfig(level=os.environ.get("YARD_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with contextlib.suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(options, Path(options.key_file).read_text().strip()))


if __name__ == "__main__":
    main()
