"""What the documentation repeats from the code is what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from agents.probes.simulated import SHAPES
from scheduler.core.reasons import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)

PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text()
    assert written == generate.PAGES[name](), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_inside_the_project_exist(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    missing = [t for t in targets if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()]
    assert not missing


def test_the_scripts_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"\./script/([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "up", "bench"} <= named
    assert all((ROOT / "script" / name).exists() for name in named)


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"all \[(\d+) codes\]", text) == [str(len(CATALOGUE))]
    named = set(
        re.findall(r"`([a-z0-9-]+)`", next(line for line in text.splitlines() if line.startswith("| Simulated")))
    )
    assert named == set(SHAPES)
