"""Which tests concern which module: the near ones first; a mutant that survives these meets the wide ones too."""

MODULES = [
    "conceptloader/order", "conceptloader/batch", "conceptloader/format", "conceptloader/ingest",
    "conceptloader/loader.py", "conceptloader/samplers.py",
]  # fmt: skip

_TESTS: dict[str, tuple[list[str], list[str]]] = {
    "conceptloader/order/runlog.py": (["tests/order/test_runlog.py"], ["tests/order", "tests/trace"]),
    "conceptloader/order/resume.py": (["tests/order/test_resume.py"], ["tests/order", "tests/testing", "tests/config"]),
    "conceptloader/order": (
        ["tests/order"],
        ["tests/schedule", "tests/config", "tests/loader", "tests/testing", "tests/trace"],
    ),
    "conceptloader/batch/prefetch.py": (["tests/loader/test_prefetch.py"], ["tests/loader", "tests/faults"]),
    "conceptloader/batch/digest.py": (["tests/loader/test_digest.py"], ["tests/loader"]),
    "conceptloader/batch": (
        ["tests/batch", "tests/corruption/test_engine.py"],
        ["tests/loader", "tests/faults", "tests/concurrency/test_readers.py", "tests/remote"],
    ),
    "conceptloader/format/remote.py": (["tests/remote"], ["tests/adopt"]),
    "conceptloader/format": (
        ["tests/format"],
        [
            "tests/golden", "tests/corruption/test_datasets.py", "tests/adopt", "tests/ingest", "tests/annotate",
            "tests/concurrency", "tests/hostile", "tests/batch",
        ],
    ),
    "conceptloader/ingest/adopt": (["tests/adopt"], ["tests/golden", "tests/hostile"]),
    "conceptloader/ingest/annotate": (["tests/annotate"], ["tests/golden", "tests/cli"]),
    "conceptloader/ingest": (
        ["tests/ingest", "tests/annotate"],
        ["tests/cli", "tests/datatrove", "tests/concurrency/test_builds.py", "tests/hostile"],
    ),
    "conceptloader/loader.py": (["tests/loader"], ["tests/golden", "tests/testing", "tests/faults", "tests/trace"]),
    "conceptloader/samplers.py": (["tests/loader/test_samplers.py"], ["tests/golden", "tests/loader"]),
}  # fmt: skip


def tests_of(path: str) -> tuple[list[str], list[str]]:
    """(near, wide) tests of a module: those of the longest name in the table that its path begins with."""
    return _TESTS[max((name for name in _TESTS if path.startswith(name)), key=len)]
