"""Which tests concern which module: the near ones first; a mutant that survives these meets the wide ones too."""

from pathlib import Path

MODULES = [
    "conceptloader/order", "conceptloader/batch", "conceptloader/format", "conceptloader/ingest",
    "conceptloader/storage", "conceptloader/torch/loader.py", "conceptloader/torch/samplers.py",
]  # fmt: skip

# Folder -> (words in a module's name -> files in the folder's tests that come first, the files of all others).
_NEAR: dict[str, tuple[dict[str, str], str]] = {
    "order": (
        {
            "partition": "partition", "schedule": "schedule partition", "sequential": "sequential", "spec": "spec",
            "resume": "resume", "runlog": "runlog", "skips": "mixture resume", "checks": "spec partition",
            "permutation": "permutation", "wide": "permutation mixture", "state": "resume versions",
        },
        "golden mixture permutation",
    ),
    "batch": (
        {"descriptors": "files", "files": "files", "layout": "memory engine", "measure": "engine memory"},
        "engine reference",
    ),
    "format": (
        {
            "checks": "verify damage", "verify": "verify claims damage", "codecs": "codecs",
            "convert": "convert golden", "join": "join golden", "ladder": "ladder join",
            "lookup": "lookup golden", "overlap": "overlap", "ranges": "windows golden", "reader": "windows golden",
            "files": "damage windows foreign", "shard": "writer golden",
            "tables": "writer golden", "track": "writer golden", "build": "build golden",
            "finalize": "build golden damage",
        },
        "manifest golden build",
    ),
    "ingest": (
        {
            "lines": "lines bad_input", "digits": "digits", "overlap": "overlap", "tokenizer": "tokenizer",
            "batch": "batches", "records": "batches bad_input", "table": "batches bad_input", "spans": "overlap build",
            "columns": "batches bad_input", "align": "align", "lost": "lost", "inputs": "changed_inputs build",
        },
        "build bad_input",
    ),
}  # fmt: skip
# Modules, or folders, whose tests are elsewhere.
_ELSEWHERE = {
    "ingest/adopt/megatron": "adopt/test_megatron.py",
    "ingest/adopt/datatrove": "adopt/test_datatrove.py",
    "ingest/adopt/flat": "adopt/test_flat.py",
    "ingest/adopt": "adopt/test_flat.py adopt/test_datatrove.py adopt/test_megatron.py",
    "ingest/annotate": "annotate",
    "format/tools/derived": "annotate adopt/test_flat.py",
    "format/read/remote": "remote",
    "batch/prefetch": "loader/test_prefetch.py",
    "batch/digest": "loader/test_digest.py",
    "storage": "remote",
    "storage/descriptors": "batch/test_files.py faults/test_reads.py",
    "storage/durable": "format/test_durability.py",
    "storage/lock": "concurrency/test_locks.py",
    "storage/reads": "faults/test_reads.py",
    "storage/sample": "format/test_sample.py",
    "torch/loader": "loader/test_loader.py loader/test_dataset.py",
    "torch/samplers": "loader/test_samplers.py",
}
_WIDE = {
    "order": "golden order schedule config loader testing trace",
    "batch": "golden batch corruption/test_engine.py loader faults concurrency/test_readers.py remote",
    "format": "golden format corruption/test_datasets.py adopt ingest annotate concurrency hostile batch remote faults",
    "ingest": "golden ingest adopt annotate cli datatrove concurrency/test_builds.py hostile",
    "storage": "golden faults format batch corruption concurrency remote",
    "torch": "golden loader testing faults trace cli",
}


def near_and_wide(path: str) -> tuple[list[str], list[str]]:
    """(near, wide) tests of a module."""
    name = path.removeprefix("conceptloader/").removesuffix(".py")
    wide = [f"tests/{test}" for test in _WIDE[name.split("/")[0]].split()]
    found = max((key for key in _ELSEWHERE if name.startswith(key)), key=len, default=None)
    if found is not None:
        return [f"tests/{test}" for test in _ELSEWHERE[found].split()], wide
    folder, words = name.split("/")[0], Path(name).name.split("_")
    named, others = _NEAR[folder]
    stems = next((named[word] for word in words if word in named), others)
    return [f"tests/{folder}/test_{stem}.py" for stem in stems.split()], wide
