"""All mutants of a Python file: one operator, constant, comparison or condition is another one.

Left out: annotations, decorators, docstrings and other strings, `__all__`, what only type checkers read, and the inside
of f-strings, since Python before 3.12 does not say where in the file it is.
"""

import ast
from bisect import bisect_right
from dataclasses import dataclass

_BINARY = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "//", ast.Pow: "*",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|",
}  # fmt: skip
_COMPARE = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",),
    ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",), ast.NotIn: ("in",),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Mutant:
    """Bytes [start, stop) of `path` (relative to the checkout) replaced by `new`."""

    path: str
    line: int
    start: int
    stop: int
    new: str

    @property
    def place(self):
        return f"{self.path}:{self.line}"

    def apply(self, source):
        return source[: self.start] + self.new.encode() + source[self.stop :]

    def before_and_after(self, source):
        """The lines that hold the change, without indentation: what it is known by when line numbers move."""
        begin = source.rfind(b"\n", 0, self.start) + 1
        end = source.find(b"\n", self.stop)
        after = self.apply(source)
        grown = len(after) - len(source)
        return [" ".join(text.decode().split()) for text in (source[begin:end], after[begin : end + grown])]


class _Finder:
    def __init__(self, path, source):
        self._path, self._source = path, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def find(self, node):
        if _not_code(node):
            return
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.find(child)

    def _of(self, node):
        if isinstance(node, ast.BinOp):
            yield from self._between(node.left, node.right, [_BINARY.get(type(node.op), "")])
        elif isinstance(node, ast.AugAssign):
            new = _BINARY.get(type(node.op), "")
            yield from self._between(node.target, node.value, [f"{new}="] if new else [])
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, right, op in zip(sides, sides[1:], node.ops, strict=False):
                yield from self._between(left, right, _COMPARE[type(op)])
        elif isinstance(node, ast.BoolOp):
            new = "or" if isinstance(node.op, ast.And) else "and"
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, [new])
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
            sign = 3 if isinstance(node.op, ast.Not) else 1  # a bracket may stand before the operand
            yield self._make(self._start(node), self._start(node) + sign, "")
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield from self._negated(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self._negated(test)
        elif isinstance(node, (ast.Break, ast.Continue)):
            new = "continue" if isinstance(node, ast.Break) else "break"
            yield self._make(self._start(node), self._stop(node), new)

    def _constant(self, node):
        value = node.value
        if isinstance(value, bool):
            yield self._make(self._start(node), self._stop(node), str(not value))
        elif isinstance(value, (int, float)):
            for new in (value + 1, value - 1):
                text = hex(new) if self._text(node).startswith("0x") else repr(new)
                yield self._make(self._start(node), self._stop(node), f"({text})" if new < 0 else text)

    def _negated(self, test):
        if not isinstance(test, (ast.Compare, ast.UnaryOp, ast.Constant)):  # those have mutants of their own
            yield self._make(self._start(test), self._stop(test), f"(not ({self._text(test)}))")

    def _between(self, left, right, news):
        """Replace the operator that stands between two operands, whatever parentheses and comments are around it."""
        start, stop = self._stop(left), self._start(right)
        gap = self._source[start:stop].decode()
        bare = gap.strip(" \t\n()\\")
        if not bare or "#" in bare or ")" in bare or "(" in bare:
            return
        at = start + gap.index(bare)
        yield from (self._make(at, at + len(bare), new) for new in news if new)

    def _make(self, start, stop, new):
        return Mutant(self._path, bisect_right(self._lines, start), start, stop, new)

    def _start(self, node):
        return self._lines[node.lineno - 1] + node.col_offset

    def _stop(self, node):
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node):
        return self._source[self._start(node) : self._stop(node)].decode()


def _not_code(node):
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        return node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def mutants_of(root, path):
    """Every mutant of a file."""
    source = (root / path).read_bytes()
    return sorted(set(_Finder(path, source).find(ast.parse(source))))
