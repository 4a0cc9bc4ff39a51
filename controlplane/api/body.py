"""Limits of request bodies: a body that is larger than its view accepts is refused unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, Final

from django.utils.translation import gettext as _
from rest_framework.parsers import BaseParser

from controlplane.api.problem import RequestRefused
from controlplane.documents import DEEPEST, MOST_NODES, Unreadable, from_json, from_yaml
from controlplane.jobs.section import FieldError

LARGEST_FILE: Final = 2**20
LARGEST_BATCH: Final = 16 * 2**20


class BoundedJSON(BaseParser):
    """Parses ``application/json`` up to the view's ``largest_body``."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        content = read_bounded(stream, getattr((parser_context or {}).get("view"), "largest_body", LARGEST_FILE))
        return _or_refuse(from_json, content) if content.strip() else {}


class BoundedMergePatch(BoundedJSON):
    """Parses a JSON merge patch (RFC 7396)."""

    media_type = "application/merge-patch+json"


class BoundedYAML(BaseParser):
    """Parses ``application/yaml`` as a job file: YAML 1.2 scalars, no anchors, no tags, no duplicate keys."""

    media_type = "application/yaml"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return _or_refuse(from_yaml, read_bounded(stream, LARGEST_FILE))


def read_bounded(stream: IO[bytes], largest: int) -> bytes:
    """Read the whole stream; raises 413 if it is longer than ``largest`` bytes."""
    content = stream.read(largest + 1)
    if len(content) > largest:
        raise RequestRefused(413, "too_large", _("the body must have at most {most:,} bytes").format(most=largest))
    return content


def _or_refuse(parse: Any, content: bytes) -> Any:
    try:
        return parse(content)
    except Unreadable as error:
        raise RequestRefused(400, "unreadable", str(error), errors=[FieldError("", str(error), "unreadable")]) from None


def check_bounds(value: Any) -> None:
    """Raises :class:`RequestRefused` for a value that is nested too deep or holds too many values."""
    count, level = 0, [value]
    for _level in range(DEEPEST + 1):
        if not level:
            return
        count += len(level)
        if count > MOST_NODES:
            raise RequestRefused(
                422, "too_large", _("a job file may hold at most {most:,} values").format(most=MOST_NODES)
            )
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    if level:
        raise RequestRefused(
            422, "too_deep", _("a job file may be nested {most} levels deep at most").format(most=DEEPEST)
        )
