"""What the site needs besides the pages: a reference of public names, an index of tests, no link out of it."""

import ast
import posixpath
import re
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import conceptloader

# Where a name is at home -> what the chapter about it is called.
CHAPTERS = {
    "torch": "Loading",
    "blend": "Configuration",
    "order": "The order of samples",
    "format": "Datasets",
    "ingest": "Building datasets",
    "columns": "Columns",
    "trace": "Runs",
    "viewer": "Batches as text",
    "batch": "Batches in numpy",
    "errors": "Errors",
}
MODULES = [
    f"conceptloader.{name}"
    for name in ("concepts", "errors", "writing", "trace", "mixing", "metrics", "receipts", "adapters", "testing")
]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)]*)\)")


def reference() -> str:
    """The page, as directives that are filled in from signatures and docstrings."""
    homes = {name: home for name, home in conceptloader._PUBLIC.items() if name in conceptloader.__all__}
    page = ["# Public names", "", "All of them are `conceptloader.NAME`, imported on first use.", ""]

    def chapter(name: str) -> int:
        return list(CHAPTERS).index(homes[name].partition(".")[0])

    for number, names in groupby(sorted(homes, key=lambda name: (chapter(name), name.lower())), chapter):
        page += [f"## {list(CHAPTERS.values())[number]}", ""]
        page += [f"::: conceptloader.{homes[name]}.{name}\n" for name in names]
    for module in MODULES:
        page += [f"## `{module}`", ""]
        exported: Any = import_module(module)
        page += [f"::: {getattr(exported, name).__module__}.{name}\n" for name in exported.__all__]
    return "\n".join(page)


def tests() -> str:
    """The page: what each file of tests says that it is for."""
    root = Path(__file__).parents[1]
    page = ["# Index of tests", "", "What each file of tests checks, in its own words.", ""]
    for folder, files in groupby(sorted(root.glob("tests/**/test_*.py")), lambda path: path.parent):
        page += [f"## {folder.relative_to(root)}", "", "| file | checks |", "| --- | --- |"]
        for file in files:
            summary = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n\n")[0]
            page.append(f"| `{file.name}` | {' '.join(summary.split()).replace('|', chr(92) + '|')} |")
        page.append("")
    return "\n".join(page)


def on_files(files: Any, config: Any) -> Any:
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "tests.md", content=tests()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file beside docs/ becomes the file's name: the site has pages alone."""

    def shown(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match["target"]))
        return match[0] if path.startswith("docs/") else f"{match['text']} (`{path}`)"

    return LINK.sub(shown, markdown)
