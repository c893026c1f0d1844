"""Which tests concern which module: the near ones first; a mutant that survives these meets the wide ones too."""

from collections.abc import Iterable
from pathlib import Path

MODULES = [
    "conceptloader/kernels", "conceptloader/order", "conceptloader/loader/batch", "conceptloader/run",
    "conceptloader/format", "conceptloader/ingest", "conceptloader/storage", "conceptloader/loader/torch/loader.py",
    "conceptloader/loader/torch/samplers.py", "conceptloader/loader/metrics.py", "conceptloader/columns",
]  # fmt: skip

# Folder -> (words in a module's name -> files in the folder's tests that come first, the files of all others).
NEAR: dict[str, tuple[dict[str, str], str]] = {
    "order": (
        {
            "schedule": "schedule partition", "spec": "spec", "segments": "mixture spec resume",
            "resume": "resume edges", "runlog": "runlog", "permutation": "permutation",
        },
        "golden mixture permutation",
    ),
    "loader/batch": (
        {
            "layout": "engine edges", "columns": "columns",
        },
        "engine edges ids scores",
    ),
    "format": (
        {
            "verify": "verify claims damage", "codecs": "codecs golden",
            "columnfile": "columns golden", "concat": "join golden",
            "ladder": "ladder join", "overlap": "overlap", "ranges": "windows golden",
            "reader": "windows golden threads", "files": "damage windows foreign", "shard": "writer golden build",
            "tables": "writer golden build", "track": "writer golden build", "build": "build golden",
            "finalize": "build golden damage", "shardtable": "golden manifest damage",
            "dataset": "windows golden foreign damage", "columns": "columns manifest writer",
            "layout": "golden writer manifest", "values": "windows codecs golden",
        },
        "manifest golden build",
    ),
}  # fmt: skip
# Modules, or folders, whose tests are elsewhere.
ELSEWHERE = {
    "loader/batch/reader": "batch/test_engine.py batch/test_passes.py batch/test_pieces.py faults/test_identity.py "
    "faults/test_below.py",
    "loader/batch/workspace": "batch/test_engine.py batch/test_edges.py batch/test_scores.py batch/test_pieces.py",
    "loader/batch/after": "batch/test_fields.py batch/test_concept_weights.py loader/test_loader.py",
    "loader/batch/held": "remote/test_loader.py batch/test_passes.py",
    "loader/batch/digest": "loader/test_digest.py",
    "loader/batch/open": "batch/test_edges.py batch/test_concept_weights.py batch/test_fields.py loader/test_loader.py "
    "batch/test_engine.py batch/test_ids.py",
    "loader/batch/prefetch": "loader/test_prefetch.py",
    "loader/batch/messages": "batch/test_messages.py batch/test_ids.py batch/test_fields.py packing/test_batches.py",
    "loader/batch/measure": "batch/test_engine.py cli/test_doctor.py",
    "format/read/bulk": "trace/test_index.py",
    "format/read/concepts": "trace/test_index.py select/test_own.py",
    "format/read/ids": "annotate/test_annotate.py",
    "format/spec/paths": "format/test_manifest.py remote/test_doors.py",
    "format/tools/stats": "cli/test_sessions.py",
    "format/tools/derived": "annotate adopt/test_flat.py",
    "ingest": "cli/test_sessions.py ingest/test_bad_input.py ingest/test_build.py ingest/test_units.py",
    "ingest/align": "ingest/test_align.py ingest/test_overlap.py cli/test_sessions.py",
    "ingest/build": "ingest/test_build.py ingest/test_interrupted.py ingest/test_changed_inputs.py "
    "cli/test_sessions.py",
    "ingest/records/chat": "ingest/test_chat.py cli/test_sessions.py",
    "ingest/records/lines": "ingest/test_lines.py ingest/test_bad_input.py",
    "ingest/records/special_tokens": "ingest/test_special_tokens.py cli/test_sessions.py",
    "ingest/records/tokenizer": "ingest/test_tokenizer.py ingest/test_tokenizer_folder.py ingest/test_align.py",
    "ingest/records/unaligned": "ingest/test_lost.py",
    "ingest/files": "ingest/test_directories.py",
    "ingest/hub": "ingest/test_directories.py ingest/test_tables.py",
    "ingest/adopt": "adopt/test_flat.py adopt/test_datatrove.py adopt/test_megatron.py adopt/test_content.py",
    "ingest/adopt/datatrove": "adopt/test_datatrove.py adopt/test_content.py",
    "ingest/adopt/flat": "adopt/test_flat.py adopt/test_content.py",
    "ingest/adopt/megatron": "adopt/test_megatron.py adopt/test_content.py",
    "ingest/adopt/ids": "adopt/test_ids.py adopt/test_flat.py",
    "ingest/align/units": "ingest/test_units.py",
    "ingest/annotate": "annotate cli/test_sessions.py",
    "ingest/parquet": "ingest/test_joined_parquet.py",
    "ingest/records/features": "ingest/test_features.py",
    "ingest/records/names": "cli/test_sessions.py ingest/test_changed_inputs.py",
    "ingest/build/room": "ingest/test_room.py",
    "ingest/build/trial": "ingest/test_room.py ingest/test_bad_input.py",
    "columns": "columns",
    "kernels": "kernels batch/test_engine.py batch/test_ids.py batch/test_scores.py "
    "batch/test_passes.py faults/test_identity.py",
    "kernels/arrays": "batch/test_arrays.py batch/test_fields.py batch/test_engine.py config",
    "kernels/digits": "ingest/test_digits.py trace/test_index.py",
    "kernels/order": "order/test_golden.py order/test_mixture.py order/test_permutation.py",
    "kernels/packing": "packing",
    "kernels/parts": "batch/test_engine.py batch/test_pieces.py packing select",
    "loader/metrics": "loader/test_metrics.py",
    "run/mixing": "mixing run",
    "run/mixing/odm": "mixing/test_controllers.py",
    "run/mixing/doremi": "mixing/test_controllers.py",
    "order/partition": "order/test_partition.py loader/test_state.py",
    "order/progress/state": "order/test_resume.py order/test_versions.py loader/test_state.py",
    "order/weights": "order/test_mixture.py order/test_golden.py loader/test_samplers.py",
    "run/training": "run loader/test_state.py loader/test_weights.py loader/test_move.py loader/test_loader.py",
    "run/observer": "run/test_observer.py",
    "run/weights": "loader/test_weights.py mixing",
    "run/entry": "run/test_entry.py entries",
    "run/ranks": "run/test_ranks.py",
    "storage/remote": "remote",
    "storage": "remote",
    "storage/handles": "storage concurrency/test_readers.py faults/test_reads.py",
    "storage/durable": "format/test_durability.py",
    "storage/lock": "concurrency/test_locks.py",
    "storage/objects": "storage/test_schemes.py remote",
    "storage/reads": "faults/test_reads.py storage/test_schemes.py",
    "storage/sample": "format/test_sample.py faults/test_identity.py",
    "storage/source": "storage/test_schemes.py faults/test_reads.py remote",
    "storage/threads": "remote format/test_threads.py",
    "loader/torch/loader": "loader/test_loader.py loader/test_dataset.py loader/test_state.py",
    "loader/torch/samplers": "loader/test_samplers.py loader/test_stateful.py",
}
_WIDE = {
    "kernels": "oracle order batch packing corruption/test_engine.py loader faults remote",
    "order": "oracle order config loader testing trace",
    "loader/batch": "oracle batch corruption/test_engine.py loader faults concurrency/test_readers.py remote",
    "loader/metrics": "loader mixing trainers entries",
    "run/mixing": "mixing run trainers entries",
    "columns": "columns",
    "run": "run loader mixing ranks trainers entries",
    "format": "format corruption/test_datasets.py adopt ingest annotate concurrency hostile batch remote faults trace",
    "ingest": "ingest adopt annotate cli datatrove concurrency/test_builds.py hostile",
    "storage/remote": "remote batch format",
    "storage": "faults format batch corruption concurrency remote",
    "loader/torch": "oracle loader testing faults trace cli",
}


def near_and_wide(path: str) -> tuple[list[str], list[str]]:
    """(near, wide) tests of a module."""
    name = path.removeprefix("conceptloader/").removesuffix(".py")
    wide = [f"tests/{test}" for test in _WIDE[_longest(name, _WIDE)].split()]
    if found := _longest(name, ELSEWHERE):
        return [f"tests/{test}" for test in ELSEWHERE[found].split()], wide
    room, words = _longest(name, NEAR), Path(name).name.split("_")
    named, others = NEAR[room]
    stems = next((named[word] for word in words if word in named), others)
    return [f"tests/{Path(room).name}/test_{stem}.py" for stem in stems.split()], wide


def _longest(name: str, table: Iterable[str]) -> str:
    """The module, or the innermost folder, that the table has."""
    return max((key for key in table if f"{name}/".startswith(f"{key}/")), key=len, default="")
