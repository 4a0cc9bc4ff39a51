"""A small server of the example's model: OpenAI's completions over HTTP, with numpy and nothing else.

    python3 serve.py --model FOLDER --port 8000

FOLDER holds ``vocabulary.json`` and ``tuned.npz`` as examples/finetune writes them; ``--model tiny`` makes a model that
has learned nothing, to try things out. It answers ``/v1/completions``, ``/v1/chat/completions``, ``/v1/models``,
``/health`` and ``/metrics``. It computes one token at a time for one request at a time, in the order of their arrival:
its use is to be everywhere, not to be fast.
"""

from __future__ import annotations

import argparse
import codecs
import hmac
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np

MOST_BYTES = 8 * 2**20
MOST_TOKENS = 4096
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+|\n+| +(?= )|\s|[^\sA-Za-z0-9]")


class Vocabulary:
    """Byte pairs in the order in which they were learned, as examples/finetune writes them."""

    def __init__(self, merges):
        self.rank = {tuple(pair): 256 + number for number, pair in enumerate(merges)}
        self.bytes = [bytes([value]) for value in range(256)]
        for left, right in merges:
            self.bytes.append(self.bytes[left] + self.bytes[right])

    def encode(self, text):
        numbers = []
        for word in WORD.findall(text):
            spelling = list(word.encode())
            while len(spelling) > 1:
                pairs = list(pairwise(spelling))
                best = min(pairs, key=lambda pair: self.rank.get(pair, 1 << 30))
                if best not in self.rank:
                    break
                merged, at = [], 0
                while at < len(spelling):
                    if at + 1 < len(spelling) and (spelling[at], spelling[at + 1]) == best:
                        merged.append(self.rank[best])
                        at += 2
                    else:
                        merged.append(spelling[at])
                        at += 1
                spelling = merged
            numbers += spelling
        return numbers


class Model:
    """The transformer of examples/finetune, forwards only. One request at a time computes."""

    def __init__(self, sizes, flat, vocabulary):
        self.width, self.heads, self.layers, self.context = (
            sizes[key] for key in ("width", "heads", "layers", "context")
        )
        self.vocabulary, self.weights, at = vocabulary, {}, 0
        w = self.width
        dims = [("tokens", (sizes["vocabulary"], w)), ("places", (self.context, w))]
        for block in range(self.layers):
            dims += [
                (f"{block}.attention.gain", (w,)), (f"{block}.attention.in", (w, 3 * w)),
                (f"{block}.attention.out", (w, w)), (f"{block}.network.gain", (w,)),
                (f"{block}.network.in", (w, 4 * w)), (f"{block}.network.out", (4 * w, w)),
            ]  # fmt: skip
        for name, shape in [*dims, ("gain", (w,))]:
            size = int(np.prod(shape))
            self.weights[name] = flat[at : at + size].reshape(shape)
            at += size
        if at != flat.size:
            raise SystemExit(f"the model has {flat.size} weights, and its sizes say {at}")
        self.mask = np.triu(np.full((self.context, self.context), -1e9, np.float32), 1)

    @classmethod
    def read(cls, folder):
        """Read the model of a folder. Ends the process with a sentence if there is none."""
        if folder == "tiny":
            return cls.tiny()
        try:
            merges = json.loads(_find(folder, "vocabulary.json").read_text())["merges"]
            with np.load(_find(folder, "tuned.npz")) as file:
                sizes = {key: int(file[key]) for key in ("vocabulary", "context", "width", "heads", "layers")}
                return cls(sizes, file["flat"].astype(np.float32), Vocabulary(merges))
        except (OSError, ValueError, KeyError) as error:
            raise SystemExit(f"{folder} cannot be served: {error}") from None

    @classmethod
    def tiny(cls):
        """Make a model of small random weights, the same each time; it speaks in printable characters."""
        sizes = {"vocabulary": 256, "context": 32, "width": 16, "heads": 2, "layers": 1}
        count = 256 * 16 + 32 * 16 + 2 * 16 + 16 * 48 + 16 * 16 + 2 * 16 * 64 + 16
        flat = np.random.default_rng(7).normal(0, 0.3, count).astype(np.float32)
        return cls(sizes, flat, Vocabulary([]))

    def scores(self, tokens):
        w, length, heads = self.weights, len(tokens), self.heads
        x = w["tokens"][tokens] + w["places"][:length]
        for block in range(self.layers):
            triple = _normal(x, w[f"{block}.attention.gain"]) @ w[f"{block}.attention.in"]
            asks, keys, values = triple.reshape(length, 3, heads, -1).transpose(1, 2, 0, 3)
            shares = asks @ keys.swapaxes(-1, -2) * (self.width // heads) ** -0.5 + self.mask[:length, :length]
            shares = np.exp(shares - shares.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            x = x + (shares @ values).transpose(1, 0, 2).reshape(length, -1) @ w[f"{block}.attention.out"]
            raw = np.maximum(_normal(x, w[f"{block}.network.gain"]) @ w[f"{block}.network.in"], 0)
            x = x + (raw * raw) @ w[f"{block}.network.out"]
        return _normal(x[-1], w["gain"]) @ w["tokens"].T

    def write(self, prompt, count, temperature, seed):
        """Yield ``count`` pieces of text that continue a prompt; the same seed gives the same text."""
        dice, letters = np.random.default_rng(seed), codecs.getincrementaldecoder("utf-8")(errors="replace")
        tokens = self.vocabulary.encode(prompt)[-self.context :] or [10]
        for _ in range(count):
            scores = self.scores(np.array(tokens[-self.context :])).astype(np.float64)
            if temperature > 0:
                chances = np.exp((scores - scores.max()) / temperature)
                token = int(dice.choice(chances.size, p=chances / chances.sum()))
            else:
                token = int(scores.argmax())
            tokens.append(token)
            yield letters.decode(self.vocabulary.bytes[token])


def _find(folder, name):
    for place in (Path(folder), Path(folder) / "preprocess", Path(folder) / "train"):
        if (place / name).is_file():
            return place / name
    raise OSError(f"there is no {name} in it")


def _normal(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


class Counts:
    """What ``/metrics`` tells."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = self.waiting = self.prompt = self.tokens = self.requests = 0
        self.firsts, self.firsts_s = [0] * (len(BOUNDS) + 1), 0.0

    def add(self, **more):
        with self.lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    def first(self, seconds):
        with self.lock:
            self.firsts[sum(seconds > bound for bound in BOUNDS)] += 1
            self.firsts_s += seconds

    def text(self):
        with self.lock:
            lines = [
                f"serve:num_requests_running {self.running}", f"serve:num_requests_waiting {self.waiting}",
                f"serve:prompt_tokens_total {self.prompt}", f"serve:generation_tokens_total {self.tokens}",
                f"serve:requests_total {self.requests}",
            ]  # fmt: skip
            seen = 0
            for bound, count in zip((*BOUNDS, "+Inf"), self.firsts, strict=True):
                seen += count
                lines.append(f'serve:time_to_first_token_seconds_bucket{{le="{bound}"}} {seen}')
            lines.append(f"serve:time_to_first_token_seconds_sum {self.firsts_s:.6f}")
            lines.append(f"serve:time_to_first_token_seconds_count {seen}")
        return "\n".join(lines) + "\n"


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True
    model = name = key = counts = delay_s = None
    turn = threading.Lock()

    def do_GET(self):
        if not self.may():
            return
        if self.path == "/health":
            self.whole(200, {"status": "ok", "model": self.name})
        elif self.path == "/metrics":
            self.send(200, self.counts.text().encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            self.whole(
                200, {"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "switchyard"}]}
            )
        else:
            self.fault(404, f"there is no {self.path[:100]}")

    def do_POST(self):
        try:
            length = int(self.headers.get("content-length") or -1)
        except ValueError:
            length = -1
        if not 0 <= length <= MOST_BYTES:
            self.close_connection = True
            self.fault(413 if length > 0 else 411, f"a request has a length, of at most {MOST_BYTES} bytes")
            return
        body = self.rfile.read(length)
        if not self.may():
            return
        try:
            asked = json.loads(body)
            is_chat = {"/v1/chat/completions": True, "/v1/completions": False}[self.path]
            prompt = _of_messages(asked["messages"]) if is_chat else asked["prompt"]
            count = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
            temperature, seed = float(asked.get("temperature", 1.0)), int(asked.get("seed") or 0) % 2**32
            if not isinstance(prompt, str) or not 0 < count <= MOST_TOKENS or not 0 <= temperature <= 2:
                raise ValueError(f"prompt is a text, max_tokens at most {MOST_TOKENS}, temperature from 0 to 2")
        except KeyError as error:
            known = self.path in ("/v1/chat/completions", "/v1/completions")
            self.fault(400 if known else 404, f"{error} is missing" if known else f"there is no {self.path[:100]}")
            return
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            self.fault(400, f"this cannot be answered: {error}"[:300])
            return
        self.complete(prompt, count, temperature, seed, is_chat, bool(asked.get("stream")))

    def complete(self, prompt, count, temperature, seed, is_chat, is_stream):
        began, text = time.monotonic(), []
        self.counts.add(waiting=1, requests=1, prompt=len(self.model.vocabulary.encode(prompt)))
        place = "waiting"
        head = {"id": f"cmpl-{uuid.uuid4().hex[:16]}", "created": int(time.time()), "model": self.name}
        try:
            pieces = self.model.write(prompt, count, temperature, seed)
            while True:
                # A request that would hold up others for long gives its turn back with each token.
                with self.turn:
                    piece = next(pieces, None)
                if place == "waiting":
                    self.counts.add(waiting=-1, running=1)
                    place = "running"
                if piece is None:
                    break
                if not text:
                    self.counts.first(time.monotonic() - began)
                    if is_stream:
                        self.begin("text/event-stream")
                text.append(piece)
                self.counts.add(tokens=1)
                if is_stream:
                    self.event({**head, **_choice(piece, is_chat, True, None)})
                if self.delay_s:
                    time.sleep(self.delay_s)
            if is_stream:
                self.event({**head, **_choice("", is_chat, True, "length")})
                self.chunk(b"data: [DONE]\n\n")
                self.chunk(b"")
            else:
                usage = {"completion_tokens": count}
                self.whole(200, {**head, **_choice("".join(text), is_chat, False, "length"), "usage": usage})
        finally:
            self.counts.add(**{place: -1})

    def may(self):
        """Whether the caller has the key; health needs none, so that a probe without it works."""
        given = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if not self.key or self.path == "/health" or hmac.compare_digest(given.encode(), self.key.encode()):
            return True
        self.close_connection = True
        self.fault(401, "this is not the key of this server")
        return False

    def begin(self, kind):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, body):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body))

    def whole(self, status, value):
        self.send(status, json.dumps(value).encode(), "application/json")

    def fault(self, status, text):
        self.whole(status, {"error": {"message": text, "type": "invalid_request_error", "code": None, "param": None}})

    def send(self, status, body, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


def _of_messages(messages):
    return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant:"


def _choice(text, is_chat, is_stream, reason):
    choice = {"index": 0, "finish_reason": reason}
    if not is_chat:
        return {"object": "text_completion", "choices": [{**choice, "text": text}]}
    if is_stream:
        return {"object": "chat.completion.chunk", "choices": [{**choice, "delta": {"content": text} if text else {}}]}
    return {"object": "chat.completion", "choices": [{**choice, "message": {"role": "assistant", "content": text}}]}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        # A caller who went away is no fault of this server.
        if not isinstance(sys.exc_info()[1], (ConnectionError, socket.timeout)):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser(description="Serves the model of examples/finetune as OpenAI's completions.")
    parser.add_argument("--model", required=True, help="folder with vocabulary.json and tuned.npz, or: tiny")
    parser.add_argument("--name", default="tuned", help="name of the model in answers")
    parser.add_argument("--host", default=os.environ.get("SERVICE_HOST", "0.0.0.0"), help="where to listen")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")), help="TCP port")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds to wait after each token, to try things out")
    options = parser.parse_args()
    Answers.model, Answers.name, Answers.counts = Model.read(options.model), options.name, Counts()
    Answers.key, Answers.delay_s = os.environ.get("SERVICE_API_KEY", ""), options.delay
    server = Server((options.host, options.port), Answers)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {options.model} as {options.name} at port {options.port}", flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
