"""The columns of a dataset that is made of the shards of others: of the same files."""

import os
from collections.abc import Sequence
from dataclasses import replace

from conceptloader.errors import ConfigError
from conceptloader.format.read.files import Files
from conceptloader.format.spec.columnfile import ColumnFile, HoleFiles, ItemFiles, column_file
from conceptloader.format.spec.manifest import CREATED_BY, Manifest
from conceptloader.format.spec.shardtable import Kind
from conceptloader.format.tools.derived import end_to_end, moved_path
from conceptloader.storage.durable import write_file


def join_columns(command: str, sources: Sequence[Files], manifest: Manifest, target: str) -> dict[str, ColumnFile]:
    """The columns of a dataset in the directory `target` that consists of the shards of others, in that order.

    A shard of one that lacks a column has no values of it. command: what makes the dataset, for messages.

    Raises: ConfigError for columns that contradict each other.
    """
    found = {}
    for name in sorted({name for files in sources for name in files.columns}):
        parts = [(files, files.columns.get(name)) for files in sources]
        having = [(files.roots.directory, column) for files, column in parts if column is not None]
        extras = [column.extra for _, column in having]
        at = [extra["at"] for extra in extras if "at" in extra][:1]  # what values belong to, if it is known
        types = {
            (column.dtype, column.shape, *(str(column.extra.get("at", one)) for one in at)) for _, column in having
        }
        if len(types) > 1:
            raise ConfigError(
                f"{command}: column {name!r}",
                f"items of types {sorted(types)} in {', '.join(directory for directory, _ in having)}",
                "one type",
                f"run `conceptloader column DATASET {name} --remove` on some, or write it again",
            )
        items, holes = list[ItemFiles](), list[HoleFiles]()
        for files, column in parts:
            directory, count = files.roots.directory, len(files.table)
            items.append(_moved(column.files if column else ItemFiles.absent(count), directory, target))
            lacks = (column and column.holes) or HoleFiles.absent(count, tokens=0, starts=0)
            holes.append(_moved(lacks, directory, target))
        tokens, starts = sum(one.tokens for one in holes), sum(one.starts for one in holes)
        lacking = end_to_end(holes, tokens=tokens, starts=starts) if tokens else None
        same = {key: one for key, one in extras[0].items() if all(extra.get(key) == one for extra in extras)}
        found[name] = replace(
            having[0][1], stream_fingerprint=manifest.stream_fingerprint(), files=end_to_end(items), holes=lacking,
            created_by=CREATED_BY, extra=same,
        )  # fmt: skip
        try:
            found[name].check(name, manifest)
        except ConfigError as error:
            raise error.within(f"{command}: column {name!r}") from error
    return found


def write_columns(columns: dict[str, ColumnFile], directory: str) -> None:
    """Their descriptions. Raises: ReadError."""
    for name, column in columns.items():
        write_file(os.path.join(directory, column_file(name)), column.dump())


def _moved(files: Kind, directory: str, target: str) -> Kind:
    return replace(files, path=[path and moved_path(path, directory, target) for path in files.path])
