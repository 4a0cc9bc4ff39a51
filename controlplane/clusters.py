"""The other clusters that people reach from the pages of this one: names and addresses, nothing of who they are."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

MOST: Final = 50
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class ClusterAddress(NamedTuple):
    """A cluster, and the address of its control plane: a scheme, a host and perhaps a port."""

    name: str
    address: str


def parsed(entries: list[str]) -> tuple[ClusterAddress, ...]:
    """Return the clusters that ``name=address`` name, in their order. Raises ValueError for the first that is wrong."""
    found: dict[str, ClusterAddress] = {}
    for entry in entries:
        name, _equals, address = (part.strip() for part in entry.partition("="))
        if not _NAME.fullmatch(name):
            raise ValueError(f'"{entry}": a name has 1 to 40 letters, digits, ".", "_" and "-"')
        if name in found:
            raise ValueError(f'"{name}" is there twice')
        found[name] = ClusterAddress(name, _origin(entry, address))
    if len(found) > MOST:
        raise ValueError(f"{len(found)} clusters; {MOST} are the most")
    return tuple(found.values())


def _origin(entry: str, address: str) -> str:
    try:
        parts = urlsplit(address)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(f'"{entry}": no address like https://yard.example.org') from None
    plain = all(32 < ord(letter) < 127 and letter not in "\"'<>\\" for letter in address)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port or not plain:
        raise ValueError(f'"{entry}": no address like https://yard.example.org')
    if parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f'"{entry}": an address has neither user nor path, such as https://yard.example.org')
    return f"{parts.scheme}://{parts.netloc}"
