"""Reads ``ports`` and ``idle_timeout`` of a stage: on which ports it serves web pages to those who may enter it."""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from agents.protocol import MOST_PORTS
from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, choice, duration, matching, shown, whole

KEYS: Final = ("name", "port", "protocol", "path")
PROTOCOLS: Final = ("http",)
LEAST: Final = 1_024
LONGEST_PATH: Final = 500
SHORTEST_S: Final = 300.0
LONGEST_S: Final = 7 * 86_400.0
# In a path, the place of the secret that the stage has in the variable.
PLACE: Final = "{token}"
VARIABLE: Final = "YARD_PORT_TOKEN"
NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_NAME = matching(NAME, gettext_noop("1 to 32 lower-case letters, digits and -"))
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")


def read(section: Section) -> dict[str, Any]:
    """Return the ports and the time without use as they are stored in the request of a stage; empty without ports."""
    found: list[dict[str, Any]] = []
    for index, each in enumerate(section.each("ports", MOST_PORTS)):
        at = f"/ports/{index}"
        part = Section(each, section.at(at), section.refusals, KEYS)
        if not isinstance(each, dict):
            continue
        for key in ("name", "port"):
            if not part.has(key):
                part.refuse(key, _("{key} is missing").format(key=key), "missing")
        port = {
            "name": part.read("name", _NAME, ""),
            "port": part.read("port", whole(LEAST, 65_535), 0),
            "path": part.read("path", _path, "/"),
        }
        part.read("protocol", choice(*PROTOCOLS), "http")
        for key in ("name", "port"):
            if any(port[key] == other[key] for other in found):
                part.refuse(key, _("two ports have the {key} {value}").format(key=key, value=port[key]), "duplicate")
        found.append(port)
    idle_s = section.read("idle_timeout", duration(SHORTEST_S, LONGEST_S), 0.0)
    if idle_s and not found:
        said = _("idle_timeout counts from when somebody last used one of its ports; name them under ports")
        section.refuse("idle_timeout", said, "needs_ports")
    return {**({"ports": found} if found else {}), **({"idle_timeout_s": idle_s} if idle_s else {})}


def _path(value: object) -> str:
    bare = value.replace(PLACE, "x") if isinstance(value, str) else ""
    if not isinstance(value, str) or len(value) > LONGEST_PATH or bare.startswith("//") or not _PATH.fullmatch(bare):
        said = _("must be the path of an address, such as /lab?token={place}, not {value}")
        raise Unacceptable(said.format(place=PLACE, value=shown(value)), "invalid")
    return value


def token(attempt: uuid.UUID) -> str:
    """Return the secret of an attempt's ports, which other users of its node do not know."""
    return hmac.new(settings.SECRET_KEY.encode(), b"switchyard ports of " + attempt.bytes, hashlib.sha256).hexdigest()


def path(port: dict[str, Any], attempt: uuid.UUID) -> str:
    """Return where a browser begins at a port, with the secret in its place."""
    return str(port["path"]).replace(PLACE, token(attempt))
