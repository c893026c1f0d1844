"""Words that nobody would search for: python -m tests.house.vocabulary, part of `make lint`.

Pages and the strings of the product (messages, help, docstrings) use the terms of the field. For each word that this
project once had for itself vocabulary.txt has the usual ones.
"""

import ast
import re
import sys
from pathlib import Path

from tests.house.imports import ROOT, product_files

INSTEAD = [line.split(" => ") for line in Path(__file__).with_suffix(".txt").read_text().splitlines()[2:]]
WORDS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): instead for word, instead in INSTEAD}
OTHERS = [page for folder in ("docs", "design") for page in (ROOT / folder).rglob("*.md")]
PAGES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", *OTHERS]
NAME = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def texts():
    """(file, line, text) of all that people read: pages without their code, strings and docstrings of the product."""
    for page in (ROOT / page for page in PAGES):
        text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"))
        text = NAME.sub("", text)
        yield from ((page, number, line) for number, line in enumerate(text.splitlines(), 1))
    for file in product_files():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                text = NAME.sub("", node.value)
                yield from ((file, node.lineno + k, line) for k, line in enumerate(text.splitlines()))


def main():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}, usually: {instead}"
        for path, line, text in texts()
        for word, instead in WORDS.items()
        for match in word.finditer(text)
    ]
    if missing := [folder for folder in sys.argv[1:] if not (ROOT / folder).exists()]:
        raise SystemExit(f"no such folder: {', '.join(missing)}")
    found = [line for line in found if not sys.argv[1:] or line.startswith(tuple(sys.argv[1:]))]
    print("\n".join(found) or "no private words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
