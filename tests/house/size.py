"""Code lines and tokens of the core, the add-ons and the tests: python -m tests.house.size [REVISION].

A code line holds a token that is neither a comment nor a docstring. With a revision of git, also the difference to it.
"""

import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ("__init__", "base", "errors", "kernels", "storage", "order", "config", "loader", "run", "launch")
IN_FORMAT = ("spec", "read")
NOT_CORE = ("remote", "mixing", "metrics")
LAYOUT = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@cache  # most files are the same in both revisions
def count(text):
    """(code lines, tokens) of a file."""
    lines, tokens, begins = set(), 0, True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        alone = begins and token.type == tokenize.STRING  # a docstring, or a string that nobody reads
        if token.type not in (*LAYOUT, tokenize.COMMENT) and not alone:
            lines |= {*range(token.start[0], token.end[0] + 1)}
            tokens += 1
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            begins = token.type in LAYOUT
    return len(lines), tokens


def part(path):
    """Where a file is counted."""
    top, name, below, *_ = *path.removesuffix(".py").split("/"), "", ""
    if top == "tests":
        return "tests"
    core = below in IN_FORMAT if name == "format" else name in CORE and below not in NOT_CORE
    return "core" if core and top == "conceptloader" else "add-ons"


def files(revision):
    """(path, text) of the Python files of a revision; "": as they lie here."""
    tops = ("conceptloader", "integrations", "tests")
    if not revision:
        paths = sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))
        yield from ((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths)
        return
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision, *tops], stdout=-1, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)):
                yield member.name, file.read().decode()


def sizes(revision=""):
    """(part, "lines" or "tokens") -> how many."""
    found = Counter()
    for path, text in files(revision):
        for name in (part(path), "product" if part(path) != "tests" else ""):
            found.update(dict(zip(((name, "lines"), (name, "tokens")), count(text), strict=True)))
    return found


def main(revision=""):
    now, before = sizes(), sizes(revision) if revision else None
    for name in ("core", "add-ons", "product", "tests"):
        shown = [(now[name, what], before and now[name, what] - before[name, what]) for what in ("lines", "tokens")]
        print(f"{name:8}" + "".join(f"{n:10,}" + ("" if d is None else f" ({d:+,})") for n, d in shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
