"""The documentation at /docs: the files that ``./script/docs`` built, the same for everybody, signed in or not."""

from __future__ import annotations

import mimetypes
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import http_date
from django.views.decorators.http import require_safe

# What the site consists of; other files that lie in its folder are not served.
TYPES = {
    suffix: mimetypes.types_map.get(suffix, "application/octet-stream")
    for suffix in (".css", ".gif", ".html", ".ico", ".jpg", ".json", ".png", ".svg", ".txt")
} | {".js": "text/javascript", ".webp": "image/webp", ".woff2": "font/woff2"}
PAGES_KEPT_S = 300
# Sphinx writes a checksum into the address of each of its scripts and styles (?v=...).
FILES_KEPT_S = 86_400


@require_safe
def show(request: HttpRequest, name: str = "") -> HttpResponse:
    """A file of the site, or the page that tells how to build it. ``name`` of a folder is its ``index.html``."""
    root = settings.DOCS.resolve()
    if not (root / "index.html").is_file():
        response = render(request, "documentation_missing.html", status=404)
        response["Cache-Control"] = "no-store"
        return response
    path = file_of(root, name)
    if path is None:
        raise Http404
    status = path.stat()
    etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    response = HttpResponse(content_type=_content_type(path))
    if unchanged := get_conditional_response(request, etag, int(status.st_mtime)):
        response = unchanged
    else:
        response.content = path.read_bytes()
    response["ETag"] = etag
    response["Content-Language"] = "zh-Hans" if name.startswith("zh/") else "en"
    response["Last-Modified"] = http_date(datetime.fromtimestamp(status.st_mtime, UTC).timestamp())
    response["Cache-Control"] = f"public, max-age={PAGES_KEPT_S if path.suffix == '.html' else FILES_KEPT_S}"
    return response


def file_of(root: Path, name: str) -> Path | None:
    """The file of the site at ``root`` with this address, or None. No link and no ``..`` leads out of the site."""
    if any(part.startswith(".") for part in name.split("/")) or "\0" in name or "\\" in name:
        return None
    try:
        path = (root / (name + "index.html" if not name or name.endswith("/") else name)).resolve()
        there = path.is_relative_to(root) and path.suffix in TYPES and path.is_file()
    except OSError:
        return None
    return path if there else None


def _content_type(path: Path) -> str:
    kind = TYPES[path.suffix]
    return f"{kind}; charset=utf-8" if kind.startswith("text/") or kind.endswith("json") else kind
