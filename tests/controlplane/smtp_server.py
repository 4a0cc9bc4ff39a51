"""A mail server on loopback that keeps what it takes: the real protocol, without a queue or a next server."""

from __future__ import annotations

import base64
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

LOGIN, PASSWORD = "yard", "a p@ss/word"


class Session(socketserver.StreamRequestHandler):
    """One connection."""

    server: Sink
    timeout = 10  # of a client that says nothing more

    def handle(self) -> None:
        self.say("220 sink")
        while line := self.rfile.readline(10_000):
            command, _, rest = line.decode("ascii").strip().partition(" ")
            self.server.commands.append(command.upper())
            if self.answer(command.upper(), rest):
                return

    def answer(self, command: str, rest: str) -> bool:
        """Answers a command; True where the connection ends."""
        match command:
            case "EHLO":
                self.say("250-sink", "250 AUTH PLAIN" if self.server.asks_password else "250 8BITMIME")
            case "AUTH":
                told = base64.b64decode(rest.split()[-1]).decode().split("\0")[1:]
                self.say("235 welcome" if told == [LOGIN, PASSWORD] else "535 who are you")
            case "RCPT" if rest.partition("<")[2].rstrip(">") in self.server.refused:
                self.say(self.server.refused[rest.partition("<")[2].rstrip(">")])
            case "DATA":
                self.say("354 go on")
                lines = []
                while (line := self.rfile.readline(100_000)) not in {b".\r\n", b""}:
                    lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
                self.server.taken.append(b"".join(lines))
                if self.server.is_cut_short:
                    # It has the mail, and dies before it says so.
                    return True
                self.say("250 taken")
            case "QUIT":
                self.say("221 bye")
                return True
            case _:
                self.say("250 well")
        return False

    def say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


class Sink(socketserver.ThreadingTCPServer):
    """The server. ``refused`` has what is said to addresses that are not taken."""

    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.taken: list[bytes] = []
        self.commands: list[str] = []
        self.refused: dict[str, str] = {}
        self.asks_password = False
        self.is_cut_short = False

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def mails(self) -> list[EmailMessage]:
        """What it took, as a reader's program would read it."""
        found = [message_from_bytes(each, policy=policy.default) for each in self.taken]
        return [each for each in found if isinstance(each, EmailMessage)]


@contextmanager
def sink() -> Iterator[Sink]:
    """A server that runs meanwhile."""
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
