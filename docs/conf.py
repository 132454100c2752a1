"""The pages of docs/ as a site: `./ratchet docs`. Decision 0049 says why Sphinx and MyST."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ratchet.app.version import ratchet_version

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Ratchet"
release = version = ratchet_version()
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
html_theme = "furo"
html_title = f"Ratchet {release}"
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []

myst_heading_anchors = 4  # links to headings, by GitHub's names for them
myst_links_external_new_tab = False

default_role = "literal"  # docstrings write `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Source code of other languages that no lexer has to agree with.
suppress_warnings = ["misc.highlighting_failure"]

SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"^- \[[^\]]*\]\(([^)]+)\.md\)", re.MULTILINE)

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([A-Z]+\.md)\)")
"""A link to README.md, CHANGELOG.md or CONTRIBUTING.md of the repository."""
SHOWN_BY = re.compile(r'^\[(\w+)\]: (?:\.\./)+((?:tests|faults)/\S+)(?:\s+"([^"]*)")?$', re.MULTILINE)
"""Definition of a link to a test or fault run that shows a promise."""
ROOT = Path(__file__).parents[1]


def without_links_to_outside(_: Sphinx, name: str, source: list[str]) -> None:
    """Keep the text of links to files outside the site, and list tests; a missing file stays a link and fails."""
    source[0] = SHOWN_BY.sub(lambda found: f"- \\[{found[1]}\\] `{found[2]}` {found[3] or ''}", source[0])
    source[0] = OUTSIDE.sub(lambda found: found[1] if (ROOT / found[2]).is_file() else found[0], source[0])


def add_navigation(_: Sphinx, name: str, source: list[str]) -> None:
    """Make the navigation from the lists in docs/README.md and in READMEs of folders; an unlisted page fails."""
    if Path(name).name != root_doc:
        return
    _, *parts = SECTION.split(source[0])
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        pages = "\n".join(PAGE.findall(text))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """A server shows index.html where no page is named."""
    if error is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", without_links_to_outside)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
