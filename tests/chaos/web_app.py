"""What listens on the ports of a job under test: an application of pages and WebSockets, and a server of nonsense."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs

import uvicorn

PAGE = b"<!doctype html><title>notebook</title><h1>notebook</h1><script>window.ready = 1</script>"
PIECE = b"x" * 65_536


async def answer(send: Any, body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body})


async def http(scope: Any, receive: Any, send: Any) -> None:
    query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    match scope["path"]:
        case "/echo":
            told = [[name.decode(), value.decode()] for name, value in scope["headers"]]
            body = {"method": scope["method"], "path": scope["raw_path"].decode(), "headers": told, "query": query}
            await answer(send, json.dumps(body).encode(), (b"content-type", b"application/json"))
        case "/token":
            await answer(send, os.environ["YARD_PORT_TOKEN"].encode())
        case "/digest":
            digest, size, is_more = hashlib.sha256(), 0, True
            while is_more:
                message = await receive()
                digest.update(message.get("body", b""))
                size += len(message.get("body", b""))
                is_more = message.get("more_body", False)
            await answer(send, f"{size} {digest.hexdigest()}".encode())
        case "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(int(query["pieces"])):
                await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            await send({"type": "http.response.body"})
        case "/lines":
            lines = [(b"x-%d" % n, b"1") for n in range(int(query["count"]))]
            await answer(send, b"many", *lines)
        case "/cookies":
            set_ = [
                b"yard_session=stolen; Path=/",
                b"yard_csrf=x",
                b"yard_port=y; Path=/lab",
                b"_xsrf=z; Domain=localhost",
            ]
            more = [(b"strict-transport-security", b"max-age=9"), (b"clear-site-data", b'"cookies"')]
            await answer(send, b"", *[(b"set-cookie", each) for each in set_], *more)
        case "/moved":
            await answer(send, b"", (b"location", f"http://127.0.0.1:{scope['server'][1]}/echo".encode()), status=302)
        case "/slow":
            await asyncio.sleep(600)
        case _:
            await answer(send, PAGE, (b"content-type", b"text/html"))


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "headers":
            told = {name.decode(): value.decode() for name, value in scope["headers"]}
            await send({"type": "websocket.send", "text": json.dumps(told)})
        elif message.get("text") == "leave":
            await send({"type": "websocket.close", "code": 4321, "reason": "asked"})
            return
        else:
            await send({**message, "type": "websocket.send"})


async def app(scope: Any, receive: Any, send: Any) -> None:
    await (websocket if scope["type"] == "websocket" else http)(scope, receive, send)


async def serve(port: int, raw: int) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        await writer.drain()
        writer.write(
            b"nonsense\r\n\r\n" if b"nonsense" in asked else b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes."
        )
        await writer.drain()
        writer.close()

    await asyncio.start_server(cut, "127.0.0.1", raw)
    config = uvicorn.Config(
        app, port=port, log_level="warning", ws="websockets-sansio", h11_max_incomplete_event_size=10**6
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
