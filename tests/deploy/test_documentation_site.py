"""The site of the documentation, as ``./script/docs`` builds it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run([ROOT / "script" / "docs", tmp_path / "site"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text()
        # What the control plane's Content-Security-Policy allows: files of this server only.
        assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\son[a-z]+=", text) == [], page
        assert re.findall(r'<(?:script|img|link|source)[^>]*="(?:https?:)?//[^"]*"', text) == [], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//", sheet.read_text()) == [], sheet


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    refused = subprocess.run([ROOT / "script" / "docs", tmp_path], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "name another folder" in refused.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"
