"""What the documentation repeats from the code is what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from agents.devices.vendors.simulated import SHAPES
from scheduler.core.model.reasons import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)

PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHINESE = [page for page in sorted((ROOT / "docs" / "zh").glob("*.md")) if page.name != "index.md"]


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


def test_links_of_the_dashboard_lead_to_pages_of_the_documentation() -> None:
    folders = (ROOT / "frontend" / "templates", ROOT / "controlplane" / "pages")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.*") if path.suffix in {".html", ".py"}]
    links = {link for text in texts for link in re.findall(r'"/docs/([^"#]+)(?:#[^"]*)?"', text)} - {"<path:name>"}
    assert len(links) > 3
    assert [link for link in links if not (ROOT / "docs" / link.replace(".html", ".md")).is_file()] == []


def test_the_scripts_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"\./script/([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"demo", "test", "up", "bench"} <= named
    assert all((ROOT / "script" / name).exists() for name in named)


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.findall(r"all \[(\d+) codes\]", text) == [str(len(CATALOGUE))]
    named = set(
        re.findall(r"`([a-z0-9-]+)`", next(line for line in text.splitlines() if line.startswith("| Simulated")))
    )
    assert named == set(SHAPES)


@pytest.mark.parametrize("name", ["README.md", "docs/tutorials/quickstart.md"])
def test_the_numbers_of_jobs_in_a_walk_are_those_that_people_see(name: str) -> None:
    """The demo's job is the first; each run and submit of the walk makes the next, and those named are there."""
    made = 1
    for line in re.findall(r"^yard .*$", (ROOT / name).read_text(), re.MULTILINE):
        if re.match(r"yard (run|submit)\b", line):
            made += 1
        elif found := re.match(r"yard (?:why|logs|show|wait|cancel)\b[^#]*?\b(\d+)", line):
            assert int(found[1]) == made, line
    assert made > 1


def test_each_test_that_the_page_on_security_names_is_there() -> None:
    named = set(re.findall(r"::(test_\w+)", (ROOT / "docs" / "security.md").read_text()))
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", text))
    assert len(named) > 80
    assert [name for name in sorted(named) if not any(each.startswith(name) for each in there)] == []


def test_every_page_is_reached_from_the_index() -> None:
    """What Sphinx asks of the site, without building it: every page is in a table of contents, which names no other."""
    docs = ROOT / "docs"
    reached: set[Path] = set()
    ahead = [docs / "index.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        for block in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            for entry in entries:
                named = sorted(page.parent.glob(f"{entry}.md"))
                assert named, f"{page.name} names {entry}"
                ahead += [each for each in named if each not in reached]
    assert sorted(str(page.relative_to(docs)) for page in set(docs.rglob("*.md")) - reached) == []


def outline(text: str) -> list[str]:
    """Return what a page and its translation share, in order: levels of headings, code without its comments, and each
    row of tables with the code in its first cell, which a language may put in another order."""
    found: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.lstrip().startswith("```"):
            indent, block = len(line) - len(line.lstrip()), [line.strip()]
            for inner in lines:
                if inner.strip() == "```":
                    break
                block.append(re.sub(r"(^|\s+)#( .*|$)", "", inner[indent:]).rstrip())
            found.append("\n".join(block))
        elif heading := re.match(r"#+ ", line):
            found.append(f"heading {len(heading[0]) - 1}")
        elif line.startswith("|"):
            found.append(" ".join(["row", *sorted(re.findall(r"`[^`]+`", line.split(" | ")[0]))]))
    return found


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_lacks_no_heading_code_or_row_of_its_english_page(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"^\*本页译自英文页 \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(named) == 1, "it must say from which page it is made: *本页译自英文页 [NAME](PATH)。*"
    assert outline(text) == outline((page.parent / named[0]).read_text())


@pytest.mark.parametrize(
    ("english", "chinese", "same"),
    [
        ("# A\n\n## B\n", "# 甲\n\n## 乙\n", True),
        ("# A\n\n## B\n", "# 甲\n", False),
        ("# A\n\n## B\n", "# 甲\n\n### 乙\n", False),
        ("```bash\nyard ps  # yours\n```\n", "```bash\nyard ps    # 您的\n```\n", True),
        ("```bash\nyard ps  # yours\n```\n", "```bash\nyard ps -a  # 您的\n```\n", False),
        ("```bash\nyard ps\n```\n", "", False),
        ("| `a` | first |\n| `b` | second |\n", "| `a` | 第一 |\n| `b` | 第二 |\n", True),
        ("| `a` | first |\n| `b` | second |\n", "| `a` | 第一 |\n", False),
        ("| `a` | first |\n", "| `c` | 第一 |\n", False),
    ],
)
def test_what_an_outline_tells(english: str, chinese: str, same: bool) -> None:
    assert (outline(english) == outline(chinese)) is same
