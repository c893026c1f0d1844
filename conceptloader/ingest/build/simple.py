"""A build in one call, as `conceptloader build` does it, for Python."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from conceptloader.base.options import options_from
from conceptloader.base.strict import Count, convert
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.complete import Summary
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.inputs import find_sources

Path = str | os.PathLike[str]


def build(
    inputs: Path | Sequence[Path],
    out: Path,
    *,
    workers: int = 1,
    task: tuple[int, int] | None = None,
    on_bad: Callable[[str, str, str], None] | None = None,
    **options: Any,
) -> Summary:
    """Build the dataset `out` from records, as `conceptloader build` does, or resume one that was interrupted.

    Args:
        inputs: Files, or directories of files.
        out: Directory of the dataset.
        workers: Processes; above 1, a script needs the usual `if __name__ == "__main__":`.
        task: (number, tasks): write only the shards of this one of several tasks.
        on_bad: Called with (file, place, problem) for records that cannot be ingested, which are skipped then.
        options: Those of the command, with `_` for `-`: `tokenizer="bytes"`, `no_eos=True`, `column={"text": "body"}`.
            A `vocabulary` may be a list of names: `vocabulary={"concepts": ["animal", "size"]}`.

    Returns:
        What was built, and what was lost.

    Raises:
        ConfigError: An option is wrong.
        InputError: A record cannot be ingested; see `conceptloader.ingest.build.builder.build_dataset`.
    """
    given = options_from(Options, "build", options)
    sources = find_sources(inputs)
    workers = convert(workers, Count, "workers")
    return build_dataset(sources, out, given, workers=workers, task=task, on_bad=on_bad)
