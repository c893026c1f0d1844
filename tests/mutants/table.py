"""Which tests concern which module: those of its own folder first, then the wide ones."""

from pathlib import Path

MODULES = [
    "conceptloader/kernels", "conceptloader/order", "conceptloader/loader/batch", "conceptloader/run",
    "conceptloader/format", "conceptloader/ingest", "conceptloader/storage", "conceptloader/loader/torch",
    "conceptloader/loader/metrics.py", "conceptloader/columns",
]  # fmt: skip

TESTS = {
    "kernels": "batch order packing kernels oracle faults remote trace/test_index.py ingest/test_digits.py",
    "order": "order config loader oracle trace",
    "loader/batch": "batch packing loader oracle faults remote concurrency corruption/test_engine.py",
    "loader/torch": "loader mixing run oracle",
    "loader/metrics.py": "loader mixing trainers entries",
    "run": "run mixing loader ranks oracle entries",
    "columns": "columns",
    "format": "format columns corruption adopt annotate ingest concurrency hostile batch remote faults trace select",
    "ingest": "ingest adopt annotate cli datatrove concurrency hostile",
    "storage": "storage faults format remote batch corruption concurrency",
}


def concerning(path: str) -> list[str]:
    """Tests of a module, in the order in which they are tried."""
    name = path.removeprefix("conceptloader/")
    found = TESTS[max((key for key in TESTS if f"{name}/".startswith(f"{key}/")), key=len)].split()
    named = {part.strip("_") for part in Path(name).with_suffix("").parts}
    first = [f"tests/{test}" for test in found]
    near = [str(file) for folder in first for file in sorted(Path(folder).glob("test_*.py")) if _stem(file) in named]
    return [*near, *first]


def _stem(file: Path) -> str:
    return file.stem.removeprefix("test_")
