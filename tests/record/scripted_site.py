"""A site that a test scripts: a real HTTP server with the part of the REST interface that sites are asked by.

It keeps jobs by their Idempotency-Key. Its answers can be lost after they took effect, or be replaced.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "yard_scripted_site_token"


@dataclass
class ScriptedSite:
    """What the site has, and how it misbehaves. ``instead`` maps a method and the begin of a path to a raw answer."""

    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    bundles: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    logs: dict[tuple[int, int, str], bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    instead: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    loses_answers: bool = False
    starts_in_s: float = 0.0
    verdict: str = "starts_now"
    url: str = ""

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        path = urlsplit(target).path.removeprefix("/api/v1")
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        self.asked.append((method, path))
        for (verb, begin), raw in self.instead.items():
            if verb == method and target.removeprefix("/api/v1").startswith(begin):
                return raw
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, _json({"detail": "this token is not known", "code": "unauthenticated"})
        match method, path.split("/")[1:]:
            case "GET", ["version"]:
                return 200, _json({"server": "1", "api": "v1", "cluster": "berlin", "agent_proto": 1})
            case "GET", ["hardware"]:
                return 200, _json({"results": [{"kind": "gpu", "model": "H100", "count": 8, "free": 5, "vendor": "x"}]})
            case "GET", ["bundles", digest] if digest in self.bundles:
                return 200, _json({"sha256": digest, "size_bytes": len(self.bundles[digest])})
            case "POST", ["bundles"]:
                self.bundles[sha256(body).hexdigest()] = body
                return 201, _json({"sha256": sha256(body).hexdigest(), "size_bytes": len(body)})
            case "GET", ["queue"]:
                return 200, _json({"results": [], "total": 3})
            case "POST", ["jobs"] if query.get("dry_run"):
                return 200, _json(self._tried())
            case "POST", ["jobs"]:
                return 201, _json(self._submit(json.loads(body), headers["Idempotency-Key"]))
            case "GET", ["jobs"]:
                wanted = query["label"].partition("=")[2]
                return 200, _json({"results": [one for one in self.jobs.values() if wanted in one["labels"].values()]})
            case "GET", ["jobs", number] if int(number) in self.jobs:
                return 200, _json(self.jobs[int(number)])
            case "POST", ["jobs", number, "cancel"]:
                self.end(int(number), "CANCELLED")
                return 200, _json(self.jobs[int(number)])
            case "GET", ["jobs", number, "logs"]:
                content = self.logs.get((int(number), int(query["attempt"]), query["stream"]), b"")
                return 200, content[int(query["offset"]) :][: int(query["limit"])]
        return 404, _json({"detail": "there is no such thing", "code": "not_found"})

    def _tried(self) -> dict[str, Any]:
        at = datetime.fromtimestamp(datetime.now(UTC).timestamp() + self.starts_in_s, UTC).isoformat()
        stage = {"starts_now": False, "expected_start": {"high_at": at}, "expected_s": {"p50": None}}
        return {"verdict": self.verdict, "stages": [stage]}

    def _submit(self, file: dict[str, Any], key: str) -> dict[str, Any]:
        self.submitted.append(file)
        if key not in self.keys:
            number = 40 + len(self.jobs)
            self.keys[key] = number
            stage = {"name": "main", "state": "PENDING", "cause": "", "detail": "", "exit_code": None, "attempts": 0}
            self.jobs[number] = {
                "number": number, "state": "PENDING", "cause": "", "labels": file["labels"], "stages": [stage],
                "reason": {"code": "NoFreeDevice", "text": "no device is free"},
            }  # fmt: skip
        return self.jobs[self.keys[key]]

    # -- what happens there

    @property
    def number(self) -> int:
        """The only job's number."""
        (number,) = self.jobs
        return number

    def run(self, number: int, attempt: int = 1) -> None:
        self.jobs[number]["reason"] = None
        self._set(number, "RUNNING", attempts=attempt)

    def write(self, number: int, stream: str, content: bytes, attempt: int = 1) -> None:
        key = number, attempt, stream
        self.logs[key] = self.logs.get(key, b"") + content

    def end(self, number: int, state: str, code: int | None = None, cause: str = "") -> None:
        if self.jobs[number]["state"] not in ("COMPLETED", "FAILED", "CANCELLED"):
            self._set(number, state, exit_code=code, cause=cause)

    def _set(self, number: int, state: str, **stage: Any) -> None:
        self.jobs[number]["state"] = state
        self.jobs[number]["stages"][0] |= {"state": state, **stage}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


class SiteServer(ThreadingHTTPServer):
    """The server of one scripted site."""

    daemon_threads = True

    def __init__(self, site: ScriptedSite, port: int = 0) -> None:
        self.site = site
        super().__init__(("127.0.0.1", port), _Answers)
        site.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: SiteServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, content = self.server.site.answer(self.command, self.path, self.headers, body)
        if self.server.site.loses_answers and self.command == "POST":
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815  the names of http.server

    def log_message(self, *_: object) -> None:
        return
