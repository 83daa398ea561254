"""How Sphinx makes the site: ``make docs``, or what Read the Docs does.

Every warning is an error. Nothing is fetched: theme, search and drawings are files of the site.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))
from bench import page, results
from scrapy_bloom import __version__

project = "scrapy-bloom"
author = "scrapy-bloom maintainers"
copyright = author  # noqa: A001 - Sphinx's name for it
release = version = __version__
repository = "https://github.com/scrapy-bloom/scrapy-bloom"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autoclass_content = "class"
napoleon_use_ivar = True
highlight_language = "none"
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = f"scrapy-bloom {__version__}"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_baseurl = "https://scrapy-bloom.readthedocs.io/en/stable/"
html_copy_source = False
html_theme_options = {
    "source_repository": repository,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "GitHub", "url": repository, "html": "GitHub", "class": ""}],
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5ecfa5", "color-brand-content": "#5ecfa5"},
}

PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]*)">\s*'
    r'<img alt="([^"]*)" src="([^"]*)"[^>]*>\s*</picture>'
)


def choose_pictures(_: Sphinx, __: str, source: list[str]) -> None:
    """Let a picture for light and dark follow the button of the theme.

    ``<picture>``, which GitHub shows, would follow the system only.
    """
    source[0] = PICTURE.sub(r"![\2](\3){.only-light}\n![\2](\1){.only-dark}", source[0])


def describe(
    _: Sphinx, __: str, ___: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Give search engines the first paragraph of a page as its description."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        text = " ".join(paragraph.astext().split())
        text = html.escape(re.sub("[^.]*:$", "", text) or text)  # without "such as:"
        context["metatags"] += f'\n<meta name="description" content="{text}">'
        break


def fill_measurements(_: Sphinx, name: str, source: list[str]) -> None:
    """Make the page of all measurements from their results, in place of what GitHub shows."""
    if name == "measurements":
        source[0] = page.long_page(results.read())


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("source-read", choose_pictures)
    app.connect("source-read", fill_measurements)
    app.connect("html-page-context", describe)
