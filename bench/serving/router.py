"""A router of the bench's own: before the members it is given, with a control plane that says only who they are."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.stack import ROOT
from deploy.local.port import free_port

PATIENCE_S = 180.0
PATH = "/s/bench/none/v1/completions"


@contextmanager
def router(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """A router before the replicas at these ports; yields its own once all of them answer it."""
    own = free_port(23_100)
    members = [
        {"id": n, "revision": 1, "host": "127.0.0.1", "port": port, "key": "k", "health": "/health"}
        for n, port in enumerate(ports, 1)
    ]
    table = {"services": [{"id": 1, "project": "bench", "name": "none", "members": members}]}
    well: set[int] = set()

    class Told(BaseHTTPRequestHandler):
        """Answers as the control plane would."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            report = json.loads(self.rfile.read(int(self.headers["content-length"])))
            well.update(each["id"] for each in report.get("members", ()) if each["healthy"])
            body = json.dumps(table if "sync" in self.path else {"user": "bench", "services": [1]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    control = ThreadingHTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=control.serve_forever, daemon=True).start()
    (folder / "key").write_text("of the bench")
    url = f"http://127.0.0.1:{control.server_address[1]}"
    words = [sys.executable, "-m", "router", "--control", url, "--key-file", str(folder / "key"), "--port", str(own)]
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        until(lambda: len(well) == len(ports))
        yield own
    finally:
        process.terminate()
        process.wait()
        control.shutdown()
        control.server_close()


def until(claim: Callable[[], bool]) -> None:
    """Wait until a claim holds. Ends the measurement if it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        if time.monotonic() > deadline:
            raise SystemExit("it did not come to pass")
        time.sleep(0.2)
