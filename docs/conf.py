"""How Sphinx makes the site of the documentation. ./script/docs runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from switchyard import __version__  # noqa: E402

project = "Switchyard"
author = "the authors of Switchyard"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx_copybutton"]
templates_path = ["_templates"]
html_static_path = ["_static"]
myst_heading_anchors = 4
# A block without a language is output.
highlight_language = "none"
# Pages lie below other addresses than they do here, so nothing is fetched from elsewhere: no fonts, no scripts.
html_theme = "furo"
html_title = "Switchyard"
html_css_files = ["yard.css"]
html_favicon = "../frontend/static/yard/mark.svg"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = False
# Prompts and output are not what people paste.
copybutton_selector = "div.highlight-bash pre, div.highlight-sh pre, div.highlight-yaml pre"

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)")


def links_within_the_site(app: Sphinx, name: str, text: list[str]) -> None:
    """Leave only the words of links to files of the repository that are outside this folder, such as SECURITY.md."""
    page = HERE / f"{name}.md"

    def shown(link: re.Match[str]) -> str:
        return link[0] if (page.parent / link[2]).resolve().is_relative_to(HERE) else link[1]

    text[0] = _LINK.sub(shown, text[0])


def language_of_the_page(app: Sphinx, name: str, template: str, context: dict[str, object], tree: object) -> None:
    """Pages below zh/ are Chinese; beside one the part of the table of contents that is Chinese, the last, is first."""
    if name.startswith("zh/"):
        context["language"] = "zh-Hans"
        head, *parts, chinese = re.split(r'(?=<p class="caption")', str(context["furo_navigation_tree"]))
        context["furo_navigation_tree"] = "".join([head, chinese, *parts])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", links_within_the_site)
    app.connect("html-page-context", language_of_the_page, priority=900)  # after the theme has made that table
    return {"parallel_read_safe": True, "parallel_write_safe": True}
