"""Every message of an error, in one file to read and to review: python -m tests.house.messages [--write].

Tests read the parts of an error (code, path, found, expected, fix) and leave its wording to this snapshot.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from conceptloader import errors

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("messages.txt")
# bad: of the format, a FormatError. The others are kinds that a caller tells apart, where they are raised.
KINDS = {"bad", "OtherBuild", "OtherDataset", "ChangedPast", "NoState", "BadRecord", "BadRow"}
KINDS |= {name for name in vars(errors) if name.endswith("Error")}
PARTS = ("path", "found", "expected", "fix")


def text_of(node: ast.expr) -> str:
    """The text of an argument, what is filled in as {source}."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return f"{{{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}}}"


def messages() -> Iterator[str]:
    """A line for each error that the product makes: its file, its kind, and its parts in the order of the message."""
    for file in sorted(path for top in ("conceptloader", "integrations") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                parts = dict(zip(PARTS, map(text_of, node.args), strict=False))
                parts |= {str(keyword.arg): text_of(keyword.value) for keyword in node.keywords}
                found, expected = parts.get("found", ""), parts.get("expected", "")
                what = f"found {found}, expected {expected}" if expected else found
                said = "; ".join(part for part in (what, parts.get("fix", "")) if part)
                yield f"{file.relative_to(ROOT)} {node.func.id} {parts.get('path', '')}: {said}".replace("\n", "\\n")


def main() -> int:
    now = "\n".join(sorted(messages())) + "\n"
    if "--write" in sys.argv:
        SNAPSHOT.write_text(now, "utf-8")
    before = set(SNAPSHOT.read_text("utf-8").splitlines())
    after = set(now.splitlines())
    for sign, lines in (("-", before - after), ("+", after - before)):
        print(*(f"{sign} {line}" for line in sorted(lines)), sep="\n", end="\n" if lines else "")
    print("messages changed: python -m tests.house.messages --write" if before != after else "messages as they were")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
