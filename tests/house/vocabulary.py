"""Words that nobody would search for: python -m tests.house.vocabulary, part of `make lint`.

Pages and the strings of the product (messages, help, docstrings) use the terms of the field. For each word that this
project once had for itself the list below has the usual ones.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    r"mend(ed|s)?": "fix",
    r"hand(s|ed)? (it |them |what )?out": "yield, return",
    r"deals? out|dealt out": "assign",
    r"anew": "again, re-",
    r"borders?(?!-)": "boundary",
    r"damaged?(?!_)": "corrupt(ion)",
    r"in mid-\w+": "mid-run, mid-epoch",
    r"in silence": "silently",
    r"as ever": "unchanged",
    r"of ours": "conceptloader's",
    r"of one's own": "custom",
    r"becomes of": "result",
    r"cut off": "truncated",
    r"fill(s|ed)? up|fill(s|ed)? (it|them) up": "pad",
    r"(left|leaves?|leaving) (it |them )?out": "skip, drop, omit",
    r"page-locked": "pinned",
    r"white space": "whitespace",
    r"learnt": "trained on, learned",
    r"go(es)? on|going on": "resume, continue",
    r"told apart|tells? .{1,30} apart": "distinguish",
    r"behind": "after, consumed, before",
    r"ahead of": "before, after, upcoming",
    r"its kin": "related options",
    r"sealed": "checksummed",
    r"plain engine": "reference reader",
    r"late read": "slow read",
    r"(held|holds?|holding) up": "block, delay",
    r"rising|falling": "ascending, descending",
    r"at random": "randomly, random",
    r"whatever": "any, for any",
    r"beside": "next to, besides",
    r"is (said|told)": "is logged",
    r"lest|hence": "so that, so",
    r"peers?": "baselines",
}  # fmt: skip
WORDS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): instead for word, instead in INSTEAD.items()}
OTHERS = [page for folder in ("docs", "design") for page in (ROOT / folder).rglob("*.md")]
PAGES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", *OTHERS]
NAME = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def texts() -> Iterator[tuple[Path, int, str]]:
    """(file, line, text) of all that people read: pages without their code, strings and docstrings of the product."""
    for page in (ROOT / page for page in PAGES):
        text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"))
        text = NAME.sub("", text)
        yield from ((page, number, line) for number, line in enumerate(text.splitlines(), 1))
    for file in sorted(path for top in ("conceptloader", "integrations") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                text = NAME.sub("", node.value)
                yield from ((file, node.lineno + k, line) for k, line in enumerate(text.splitlines()))


def main() -> int:
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
