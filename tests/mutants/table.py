"""Which tests concern which module: those of its own folder first, then the wide ones."""

from pathlib import Path

TESTS = {
    "kernels": "batch order packing kernels corruption/test_engine.py oracle faults remote trace/test_index.py "
    "ingest/test_digits.py",
    "order": "order config loader oracle trace",
    "loader": "loader mixing trainers entries oracle",
    "loader/batch": "batch packing loader oracle faults remote concurrency corruption/test_engine.py",
    "loader/torch": "loader mixing run oracle",
    "run": "run mixing loader ranks oracle entries balance",
    "config": "config oracle select loader entries",
    "columns": "columns",
    "format": "format columns corruption adopt annotate ingest concurrency hostile batch remote faults trace select",
    "ingest": "ingest adopt annotate cli datatrove concurrency hostile",
    "storage": "storage faults format remote batch corruption concurrency",
    "trace": "trace select view balance cli",
    "cli": "cli ingest trace select view columns",
    "base": "base concurrency ingest config",
    "integrations": "trainers entries ranks",
    "integrations/megatron_lm": "megatron entries",
    "integrations/nanotron_lm": "nanotron entries",
    "integrations/datatrove_lib": "datatrove",
}
MODULES = [name if name.startswith("integrations") else f"conceptloader/{name}" for name in TESTS if "/" not in name]
ALL = sorted({f"tests/{name}" for tests in TESTS.values() for name in tests.split() if "/" not in name})


def concerning(path):
    """Tests of a module, in the order in which they are tried."""
    name = path.removeprefix("conceptloader/")
    found = TESTS[max((key for key in TESTS if f"{name}/".startswith(f"{key}/")), key=len)].split()
    named = {part.strip("_") for part in Path(name).with_suffix("").parts}
    first = [f"tests/{test}" for test in found]
    near = [str(file) for folder in first for file in sorted(Path(folder).glob("test_*.py")) if _stem(file) in named]
    return [*near, *first]


def _stem(file):
    return file.stem.removeprefix("test_")
