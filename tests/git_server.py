"""Git repositories served over HTTP on the loopback, by ``git http-backend``."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_OWN = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
       (("NAME", "A"), ("EMAIL", "a@example.org"), ("DATE", "2026-01-01T00:00:00Z"))},
}  # fmt: skip


def git(folder: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **_OWN}
    done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class GitServer(http.server.ThreadingHTTPServer):
    """Serves the repositories in ``folder``. ``passwords`` open those that are named, ``moved`` leads elsewhere."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.passwords: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def repository(self, name: str) -> Path:
        """A new repository with a branch main, which :meth:`commit` fills."""
        folder = self.folder / name
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        return folder

    def commit(self, name: str, files: dict[str, str | bytes], message: str = "a commit") -> str:
        """Write these files and commit all; returns the id of the commit."""
        folder = self.folder / name
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        git(folder, "add", "--all", "--force")
        git(folder, "commit", "--quiet", "--message", message)
        return git(folder, "rev-parse", "HEAD")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: GitServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        name = parts.path.split("/")[1]
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        if self.server.answer is not None:
            return self.server.answer(self)
        if name in self.server.moved:
            self.send_response(301)
            self.send_header("Location", self.server.moved[name])
            self.end_headers()
            return None
        if password := self.server.passwords.get(name):
            expected = "Basic " + base64.b64encode(password.encode()).decode()
            if self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return None
        env = {
            "PATH": os.environ["PATH"],
            **_OWN,
            "GIT_PROJECT_ROOT": str(self.server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None


@contextmanager
def serving(folder: Path) -> Iterator[GitServer]:
    with GitServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
