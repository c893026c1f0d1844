"""Every message of an error, in one file to read and to review: python -m tests.house.messages [--write].

Tests read the parts of an error (code, path, found, expected, fix) and leave its wording to this snapshot. It also
counts how many messages say what was expected and what to do, and refuses a pronoun where the expected thing belongs.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

from conceptloader import errors
from tests.house.imports import ROOT, product_files

SNAPSHOT = Path(__file__).with_name("messages.txt")
# bad: of the format, a FormatError. The others are kinds that a caller tells apart, where they are raised.
KINDS = {"bad", "OtherBuild", "OtherDataset", "ChangedPast", "BadRecord", "BadRow"}
# Words: of batch/messages.py, for what the kernels find.
KINDS |= {"Words"} | {name for name in vars(errors) if name.endswith("Error")}
PARTS = ("path", "found", "expected", "fix")
PARTS_OF = {"Words": ("found", "expected", "fix", "path")}
FIXES = {"remedy": "fix", "where": "path"}
# At least so many messages have these parts. The others pass on what the system or another library says.
SHARES = {"expected": 0.9, "fix": 0.8}
# "found no loader, expected one": a reader has to look for the noun. "one of a, b" names the choices, and is none.
_AFTER = (
    r"(?=$|[,;:.]| or none\b| (?:that|which|in|for|with|from|called|after|below|as|within|to|per|before|"
    r"above|at|sorted|only)\b)"
)
PRONOUN = re.compile(
    rf"^(?:[\w-]+ ){{0,2}}ones?{_AFTER}"
    rf"|^(?:at (?:least|most) |[\w-]+ )?(?:it|them|some|such|those|that|none|all|both|others?){_AFTER}"
    r"|^(?:one|all|none|both|some|each|either) of (?:them|these|those)\b|^(?:one|some) at (?:most|least)\b|^such\b"
)


def text_of(node):
    """The text of an argument, what is filled in as {source}."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return f"{{{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}}}"


def texts_of(scope, stop=None):
    """Texts that a module or function gives a name, before a line: DAMAGED, or fix. Several messages share some."""
    body = scope.body if isinstance(scope, ast.Module) else ast.walk(scope)
    given = [node for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    texts = {ast.unparse(node.targets[0]): text_of(node.value) for node in given if stop is None or node.lineno < stop}
    return {name: text for name, text in texts.items() if not text.startswith("{")}


@cache
def calls():
    """(file, kind, parts) of each error that the product makes."""
    modules = {file: ast.parse(file.read_text("utf-8")) for file in product_files()}
    constants = {file: texts_of(module) for file, module in modules.items()}
    shared, made = {name: text for known in constants.values() for name, text in known.items()}, []
    for file, module in modules.items():
        nodes = [*ast.walk(module)]
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
                parts = dict(zip(PARTS_OF.get(node.func.id, PARTS), map(text_of, node.args), strict=False))
                if node.func.id == "BadRow" and len(node.args) > 1:  # its second argument is all of the message
                    parts = {"path": parts["path"], **parts_of(parts["found"])}
                parts |= {FIXES.get(str(part.arg), str(part.arg)): text_of(part.value) for part in node.keywords}
                known = shared | constants[file]
                for function in functions:
                    if function.lineno <= node.lineno <= (function.end_lineno or 0):
                        known |= texts_of(function, node.lineno)
                fix = parts.get("fix", "{DAMAGED}" if node.func.id == "Words" else "")
                parts["fix"] = "".join(known.get(part[1:-1], part) for part in re.split(r"(\{\w+\})", fix))
                made.append((str(file.relative_to(ROOT)), node.func.id, parts))
    return made


def parts_of(text):
    """The parts of a whole message: found, expected, fix."""
    what, _, fix = text.partition("; ")
    found, _, expected = what.partition(", expected ")
    return {"found": found.replace("found ", "", 1) if expected else found, "expected": expected, "fix": fix}


def messages():
    """A line for each error: its file, its kind, and its parts in the order of the message."""
    for file, kind, parts in calls():
        found, expected = parts.get("found", ""), parts.get("expected", "")
        what = f"found {found}, expected {expected}" if expected else found
        said = "; ".join(part for part in (what, parts.get("fix", "")) if part)
        yield f"{file} {kind} {parts.get('path', '')}: {said}".replace("\n", "\\n")


def faults():
    """What is wrong with the form of the messages. Prints how many have each part."""
    made = calls()
    for file, kind, parts in made:
        if PRONOUN.search(parts.get("expected", "")):
            yield f"{file} {kind} {parts['path']}: expected {parts['expected']}: say what, by a noun"
    for part, least in SHARES.items():
        share = sum(bool(parts.get(part)) for _, _, parts in made) / len(made)
        print(f"{share:.1%} of {len(made)} messages have the part {part!r}")
        if share < least:
            yield f"at least {least:.0%} of the messages say {part!r}"


def main():
    now = "\n".join(sorted(messages())) + "\n"
    if "--write" in sys.argv:
        SNAPSHOT.write_text(now, "utf-8")
    before = set(SNAPSHOT.read_text("utf-8").splitlines())
    after = set(now.splitlines())
    for sign, lines in (("-", before - after), ("+", after - before)):
        print(*(f"{sign} {line}" for line in sorted(lines)), sep="\n", end="\n" if lines else "")
    print("messages changed: python -m tests.house.messages --write" if before != after else "messages as they were")
    wrong = list(faults())
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(before != after or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
