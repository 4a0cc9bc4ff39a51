"""Enrolment: a join token is exchanged once for a credential, which only the agent's user can read."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
from functools import cache
from pathlib import Path

import msgspec

from agents.decode import BoundedDecoder
from agents.link.server import Channel, Identity, Server, ServerRefused
from agents.protocol import ENROL_PATH, Enrol, Enrolled
from agents.supervisor.record import sync_folder, write_whole
from agents.supervisor.small_file import content

_USABLE = re.compile(r"[A-Za-z0-9_-]{20,200}")
_enrolled = BoundedDecoder[Enrolled](Enrolled)


def read_token(source: str) -> str:
    """Read the join token from a file, or from standard input for ``-``. It is never given on the command line."""
    text = sys.stdin.readline() if source == "-" else Path(source).read_text()
    token = text.strip()
    if not token:
        raise ValueError(f'join token file "{source}" is empty; an administrator makes a token on the nodes page')
    return token


def remembered(state: Path) -> Enrolled | None:
    """Return the node's identity if it has joined before."""
    try:
        return _enrolled.read((state / "node.json").read_bytes())
    except FileNotFoundError:
        return None


@cache
def machine_id() -> str:
    """Return a digest of this machine's own id (machine-id(5)); empty if it has none.

    ``AGENT_MACHINE_ID_PATH`` names another file, for tests of a copied state folder.
    """
    name = content(os.environ.get("AGENT_MACHINE_ID_PATH", "/etc/machine-id")) or b""
    return hashlib.sha256(b"switchyard:" + name.strip()).hexdigest()[:32] if name.strip() else ""


def enrol(state: Path, server: Server, name: str, token: str) -> Enrolled:
    """Join, and store the credential. Raises ValueError, with what would help, if that is impossible now."""
    channel, url = Channel(server), server.url
    try:
        answer = channel.call("POST", ENROL_PATH, msgspec.json.encode(Enrol(token=token, name=name)))
    except ServerRefused as error:
        cure = (
            "an administrator makes a new join token on the nodes page" if error.status in (400, 401, 403, 404) else ""
        )
        raise ValueError(f'node "{name}" could not join {url}: {error}{"; " if cure else ""}{cure}') from error
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f'node "{name}" could not join: nobody answers at {url} ({error})') from error
    finally:
        channel.close()
    enrolled = _enrolled.read(answer)
    remember(state, enrolled)
    return enrolled


def remember(state: Path, enrolled: Enrolled) -> None:
    """Store the credential durably, readable by this user alone. Raises OSError; then the old one is still stored."""
    write_whole(str(state / "node.json"), msgspec.to_builtins(enrolled), sync=True)
    sync_folder(str(state))


class Credentials:
    """The current and the former secret of one node. All connections of the node share ``identity``."""

    def __init__(self, state: Path, enrolled: Enrolled) -> None:
        self.state = state
        self.enrolled = enrolled
        self.identity = Identity(f"{enrolled.node}:{enrolled.credential}")

    def take(self, credential: str) -> bool:
        """Switch to a new credential once it is on disk; return False if it is in use already. Raises OSError."""
        if not _USABLE.fullmatch(credential) or credential == self.enrolled.credential:
            return False
        new = msgspec.structs.replace(self.enrolled, credential=credential, former=self.enrolled.credential)
        remember(self.state, new)
        self._use(new)
        return True

    def fall_back(self) -> bool:
        """After a refusal, switch to the other credential: a restored control plane knows only the former one."""
        if not self.enrolled.former:
            return False
        one = self.enrolled
        self._use(msgspec.structs.replace(one, credential=one.former, former=one.credential))
        return True

    def _use(self, enrolled: Enrolled) -> None:
        self.enrolled = enrolled
        self.identity.text = f"{enrolled.node}:{enrolled.credential}"
