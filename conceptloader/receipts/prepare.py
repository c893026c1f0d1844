"""The roots of a finished dataset's shards, written next to its manifest, or computed once more and compared."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from conceptloader.base.terminal import counted
from conceptloader.base.workers import Tell, run_tasks
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.files import Files, open_files
from conceptloader.format.spec.jsonfile import dump_json
from conceptloader.receipts import merkle
from conceptloader.receipts.trees import FILE, FORMAT, VERSION, document_entries, fingerprints, prepared_roots
from conceptloader.storage.durable import write_file

Job = tuple[str, Sequence[str | os.PathLike[str]] | None, range]
"""Path, roots, shards."""


def prepare(
    path: str | os.PathLike[str],
    roots: Sequence[str | os.PathLike[str]] | None = None,
    *,
    workers: int = 1,
    check: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Read all documents of a dataset, and write what receipts need next to its manifest, unless it is there.

    Args:
        path: Directory of a dataset that is finished and no subset.
        roots: Directories that may hold its files, see `open_dataset`.
        workers: Processes; above 1, a script needs the usual `if __name__ == "__main__":`.
        check: Write nothing; read all documents and compare with what was written.
        progress: Called per shard with (done, total).

    Returns:
        Whether the file was written.

    Raises:
        ConfigError: For a URL, for documents that are unknown, and with check for a dataset that is not prepared.
        FormatError: For a subset, a corrupt file, and with check for documents that are not those of the file.
        ReadError: A file cannot be read.
    """
    with closing(open_files(path, roots, check=True)) as files:
        folder = files.roots.directory
        if files.remote is not None:
            fix = f"run `conceptloader receipt --prepare` on a local copy, and upload its {FILE} next to the manifest"
            raise ConfigError(folder, "a URL", "a local directory", fix)
        bare = np.flatnonzero((files.table.documents == 0) & (files.table.tokens > 0))
        if len(bare):
            raise ConfigError(
                folder,
                f"no documents in shard {bare[0]}",
                "documents in each shard",
                "run `conceptloader adopt` with --document-end",
            )
        known: Sequence[str] | None = None
        try:
            known = prepared_roots(files)
        except (ConfigError, FormatError):
            if check:
                raise
        if known is not None and not check:
            return False
        found = _compute(files, roots, workers, progress)
        files.require_unchanged()  # workers opened the manifest by themselves, and later
        target = files.roots.resolve(FILE)
        if known is None:
            head = {"format": FORMAT, "version": VERSION, **fingerprints(files.manifest)}
            write_file(target, dump_json({**head, "document_roots": found}))
        elif other := [shard for shard, root in enumerate(known) if root != found[shard]]:
            raise FormatError(
                f"{target}: document_roots",
                f"other documents in {counted(len(other), 'shard')}, the first is {other[0]}",
                "the documents that the file was made of",
                f"run `conceptloader verify {folder} --full` and restore the files it names: they, or "
                f"{target}, were changed since",
            )
        return known is None


def _compute(
    files: Files,
    roots: Sequence[str | os.PathLike[str]] | None,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> list[str]:
    found = dict[int, str]()

    def on_news(_: int, news: tuple[int, str]) -> None:
        found.update([news])
        if progress is not None:
            progress(len(found), len(files.table))

    def on_end(_: int, __: object, error: Exception | None) -> None:
        if error is not None:
            raise error

    shards = range(len(files.table))
    jobs: list[Job] = [(files.roots.directory, roots, part) for k in range(workers) if (part := shards[k::workers])]
    run_tasks(_roots, jobs, workers, on_news, on_end)
    return [found[shard] for shard in shards]


def _roots(job: Job, tell: Tell) -> None:
    path, roots, shards = job
    with closing(open_files(path, roots, check=True)) as files:
        for shard in shards:
            tell((shard, merkle.root_of(map(merkle.leaf, document_entries(files, shard))).hex()))
