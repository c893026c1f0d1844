"""Which modules of the product import which, and where they do so in a circle."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def product_files():
    """The Python files of the product, as they lie there."""
    return sorted(path for top in ("conceptloader", "integrations") for path in (ROOT / top).rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("conceptloader", *parts) if parts[0] == "integrations" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports():
    """Module -> modules of the product that it imports, those hidden in functions or under TYPE_CHECKING included, and
    those that are given to import_module as a string."""
    names = {module_name(path) for path in product_files()}
    graph = {}
    for path in product_files():
        name = module_name(path)
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        used = graph.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, node.module] if node.module else base)
                found = {f"{source}.{alias.name}" for alias in node.names}
                used |= {f if f in names else source for f in found}
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and name_of(node) == "import_module":
                patterns = [re.compile(possible(part)) for part in node.args]
                used |= {name for pattern in patterns for name in names if pattern.fullmatch(name)}
        used &= names - {name}
    return graph


def possible(name):
    """A pattern of the modules that a string may name; where it is made up, any word may stand for a value."""
    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
    texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
    known = isinstance(texts[0], str)  # else it begins with a value, as names of other packages do
    return "".join(r"\w*" if text is None else re.escape(str(text)) for text in texts) if known else ""


def name_of(node):
    """The last part of what is called."""
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
