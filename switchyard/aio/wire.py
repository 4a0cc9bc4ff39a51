"""The asynchronous twin of ``switchyard.wire``.

Made by switchyard/packaging/twin.py from switchyard/wire.py; change it there.
"""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from switchyard import __version__
from switchyard.problem import PASSING, ApiProblem, Unreachable
from switchyard.wire import LONGEST_PAUSE_S, _retry_after_s, _words

if TYPE_CHECKING:
    import httpx
    from websockets.asyncio.client import ClientConnection


class AsyncWire:
    """A connection to ``url``. For one event loop.

    A call without an answer, or answered with 502, 503, 504 or 429, is tried up to ``tries`` times with growing pauses.
    Every POST has an ``Idempotency-Key`` that is the same for its tries, so that none of them takes effect twice.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = 30.0, tries: int = 4) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise Unreachable(f"{url!r} is not an address; write it like https://yard.example.org")
        self.url = url.rstrip("/").removesuffix("/api/v1")
        self._token, self._timeout_s, self._tries = (token, timeout_s, max(1, tries))
        self._loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._is_plain = self._loopback and parts.scheme == "http"
        self._lock = threading.Lock()
        self._http: httpx.AsyncClient | None = None

    @property
    def address(self) -> tuple[str, str]:
        """Where and as whom it calls: the URL and the token."""
        return (self.url, self._token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        with self._lock:
            http, self._http = (self._http, None)
        if http is not None:
            await http.aclose()

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer of a GET below ``/api/v1``."""
        return (await self.call("GET", path, params=params)).json()

    async def post(
        self, path: str, body: Any = None, *, params: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Any:
        """Return the JSON answer of a POST below ``/api/v1``; ``None`` if it has none."""
        answer = await self.call("POST", path, params=params, json={} if body is None else body, key=key)
        return answer.json() if answer.content else None

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> httpx.Response:
        """Return the answer, whatever its type. Raises :class:`ApiProblem` for a refusal and :class:`Unreachable` for
        none."""
        import httpx

        sent = dict(headers or {})
        if method == "POST":
            sent["Idempotency-Key"] = key or str(uuid.uuid4())
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        for left in range(self._tries - 1, -1, -1):
            pause_s = min(LONGEST_PAUSE_S, 0.2 * 2 ** (self._tries - 1 - left)) * random.uniform(0.5, 1.0)
            try:
                answer = await self._client().request(
                    method, self.url + "/api/v1" + path, params=asked or None, json=json, content=content, headers=sent
                )
            except httpx.TransportError as error:
                if not left:
                    raise Unreachable(f"no answer from {self.url} ({_words(error)}); is it up?") from error
            except httpx.InvalidURL as error:
                raise Unreachable(f"{self.url} is not an address: {error}") from None
            else:
                if answer.is_success or answer.status_code == 304:
                    return answer
                refusal = self._refusal(answer)
                passing = answer.status_code in PASSING or (isinstance(refusal, ApiProblem) and refusal.is_passing)
                if not left or not passing:
                    raise refusal
                pause_s = min(LONGEST_PAUSE_S, _retry_after_s(answer) or pause_s)
            await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def ask(self, url: str, body: Any, *, timeout_s: float) -> Any:
        """Return the JSON answer of a router at ``url``, which the control plane named. It is asked once: what it calls
        may do its work twice. Raises :class:`ApiProblem` and :class:`Unreachable`."""
        import httpx

        try:
            answer = await self._client().request("POST", url, json=body, timeout=timeout_s)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(f"no answer from {url} ({_words(error)})") from error
        try:
            told = answer.json()
        except ValueError:
            raise Unreachable(f"{url} answered {answer.status_code} and no JSON") from None
        if answer.is_success:
            return told
        fault = told.get("error") if isinstance(told, dict) else None
        given = fault if isinstance(fault, dict) else {}
        problem = {"status": answer.status_code, "detail": str(given.get("message") or "it says no reason")}
        raise ApiProblem(answer.status_code, {**problem, "code": str(given.get("code") or "")})

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[ClientConnection]:
        """Open a WebSocket below ``/api/v1``. Raises :class:`ApiProblem` for a refusal and :class:`Unreachable` for
        none."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        async with AsyncExitStack() as opened:
            try:
                dialled = connect(
                    f"ws{self.url.removeprefix('http')}/api/v1{path}",
                    additional_headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                    user_agent_header=f"yard/{__version__}",
                    compression=None,
                    open_timeout=self._timeout_s,
                    close_timeout=1,
                    proxy=None if self._loopback else True,
                )
                line = await opened.enter_async_context(dialled)
            except InvalidStatus as error:
                status = error.response.status_code
                detail = f"{self.url} answered {status} to a session; is it older than this command, or behind a proxy?"
                raise ApiProblem(status, {"detail": detail}) from None
            except (OSError, InvalidHandshake) as error:
                raise Unreachable(f"no answer from {self.url} ({_words(error)}); is it up?") from error
            yield line

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any], *, since: str = "", silence_s: float
    ) -> AsyncIterator[httpx.Response]:
        """Open a stream of server-sent events below ``/api/v1``, which goes on after the event ``since``.

        Tries once. Raises :class:`ApiProblem` for a refusal, and :class:`Unreachable`, also while it is read, if the
        connection breaks or nothing comes for ``silence_s``.
        """
        import httpx

        asked = {name: value for name, value in params.items() if value is not None}
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": since} if since else {})
        request: dict[str, Any] = {"params": asked, "headers": headers, "timeout": silence_s}
        async with AsyncExitStack() as opened:
            try:
                answer = await opened.enter_async_context(
                    self._client().stream("GET", f"{self.url}/api/v1{path}", **request)
                )
                await self._accept(answer)
                yield answer
            except httpx.TransportError as error:
                raise Unreachable(f"the stream of {self.url} broke ({_words(error)})") from error

    async def _accept(self, answer: httpx.Response) -> None:
        """Raise the refusal that an open answer is, or what is no stream."""
        if answer.is_success and answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            return
        await answer.aread()
        raise self._refusal(answer)

    def _client(self) -> httpx.AsyncClient:
        import httpx

        with self._lock:
            if self._http is None:
                headers = {"User-Agent": f"yard/{__version__}", "Accept": "application/json, */*;q=0.5"}
                if self._token:
                    headers["Authorization"] = f"Bearer {self._token}"
                self._http = httpx.AsyncClient(
                    headers=headers, timeout=self._timeout_s, trust_env=not self._loopback, verify=not self._is_plain
                )
            return self._http

    def _refusal(self, answer: httpx.Response) -> ApiProblem | Unreachable:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if isinstance(body, dict) and ("status" in body or "code" in body or "detail" in body):
            return ApiProblem(answer.status_code, body)
        if answer.status_code in PASSING:
            return Unreachable(f"{self.url} answers {answer.status_code}: a proxy is there, the control plane is not")
        if answer.is_redirect:
            return Unreachable(
                f"{self.url} redirects to {answer.headers.get('location', '?')}; use that address instead"
            )
        detail = f"{self.url} answered {answer.status_code} without a reason; is it a Switchyard server?"
        return ApiProblem(answer.status_code, {"detail": detail})
