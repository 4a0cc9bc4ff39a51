"""The documentation at /docs: the files of the site, and nothing else of the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from controlplane.pages.documentation import file_of


@pytest.fixture
def site(tmp_path: Path, settings: Any) -> Path:
    """A site of three files, with a secret beside it and a link that leads there."""
    root = tmp_path / "site"
    (root / "zh").mkdir(parents=True)
    (root / "index.html").write_text("<h1>Switchyard</h1>")
    (root / "zh" / "index.html").write_text("<h1>文档</h1>")
    (root / "theme.js").write_text("1;")
    (root / "notes.key").write_text("secret")
    (root / ".hidden.html").write_text("secret")
    (tmp_path / "secret.html").write_text("secret")
    (root / "link.html").symlink_to(tmp_path / "secret.html")
    os.mkfifo(root / "pipe.html")
    settings.DOCS = root
    return root


@pytest.mark.parametrize(
    ("path", "kind", "language"),
    [
        ("/docs/", "text/html; charset=utf-8", "en"),
        ("/docs/index.html", "text/html; charset=utf-8", "en"),
        ("/docs/zh/", "text/html; charset=utf-8", "zh-Hans"),
        ("/docs/theme.js", "text/javascript; charset=utf-8", "en"),
    ],
)
def test_anybody_reads_the_site_and_keeps_it(site: Path, path: str, kind: str, language: str) -> None:
    answer = Client().get(path)
    assert (answer.status_code, answer["Content-Type"], answer["Content-Language"]) == (200, kind, language)
    assert answer["Cache-Control"].startswith("public, max-age=")
    # Scripts inside of pages stay forbidden, as everywhere.
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    again = Client().get(path, headers={"If-None-Match": answer["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_address_without_a_slash_leads_to_the_site(site: Path) -> None:
    assert Client().get("/docs")["Location"] == "/docs/"
    assert Client().post("/docs/").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/docs/nothing.html",
        "/docs/zh",
        "/docs/../secret.html",
        "/docs/zh/../../secret.html",
        "/docs/%2e%2e/secret.html",
        "/docs//etc/passwd",
        "/docs/link.html",
        "/docs/pipe.html",
        "/docs/notes.key",
        "/docs/.hidden.html",
        "/docs/" + "a" * 300 + ".html",
    ],
)
def test_nothing_but_files_of_the_site_is_served(site: Path, path: str, db: None) -> None:
    answer = Client().get(path)
    assert answer.status_code == 404
    assert b"secret" not in answer.content


@given(st.lists(st.sampled_from(["..", ".", "", "zh", "index.html", "secret.html", "site", "~", "\0"]), max_size=7))
def test_no_address_leads_out_of_the_site(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp() / "served"
    root = folder / "site"
    (root / "zh").mkdir(parents=True, exist_ok=True)
    (root / "index.html").touch()
    (folder / "secret.html").touch()
    found = file_of(root.resolve(), "/".join(parts))
    assert found is None or found == root.resolve() / "index.html"


def test_where_no_site_was_built_a_page_says_how(tmp_path: Path, settings: Any, db: None) -> None:
    settings.DOCS = tmp_path / "nowhere"
    answer = Client().get("/docs/reference/cli.html", headers={"Accept-Language": "zh-hans"})
    assert answer.status_code == 404
    assert answer["Cache-Control"] == "no-store"
    assert "./script/docs" in answer.content.decode()
    assert "文档" in answer.content.decode()
