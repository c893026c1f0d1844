"""Values of the rows of batches, kept by the tokens that the rows hold, in any order of the rows."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from conceptloader.base.checks import as_count
from conceptloader.base.strict import unknown
from conceptloader.columns.finish import finish
from conceptloader.columns.parts import Parts, PartWriter, taken
from conceptloader.columns.values import as_items, to_numpy
from conceptloader.config import Blend, open_blend, present
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import items_of, ragged
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columnfile import TYPES, ColumnFile, ItemFiles, column_file
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import CREATED_BY
from conceptloader.kernels.arrays import BATCH
from conceptloader.storage.durable import require_local
from conceptloader.trace.ranges import Member, by_value, ranges_of

At = Literal["labels", "inputs"]
_TOKENS = {"labels": ("labels",), "inputs": ("input_ids", "tokens")}  # keys of a batch; the last one is Megatron's


class ColumnWriter:
    """Writes a column of a finished dataset; made by `column_writer`.

    Attributes:
        tokens: How many this writer has written values of.
    """

    def __init__(self, dataset: Dataset, name: str, column: ColumnFile, source: Any = None) -> None:
        self.dataset, self.name, self.tokens = dataset, name, 0
        parts, self._source = Parts(dataset.path, name), source
        self.column = parts.agree(dataset.manifest, column)
        self._at: At = column.extra["at"]
        self._starts = np.array(dataset.shard_starts)
        self._writer = PartWriter(parts, self.column.itemsize, getattr(source, "dp_rank", 0))

    def __repr__(self) -> str:
        return f"<ColumnWriter of {self.name}, {self.column.item}: {self.tokens:,} tokens written>"

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, batch: Mapping[str, Any], values: Any) -> int:
        """Write the values of a batch of the loader: [B, S, *shape], in numpy or torch, on any device.

        Each stands where the label that it belongs to does (or the input, as `at` says). Values at padding, at what
        `exclude` takes out, at labels that `ignore_index` replaces, and of rows of other datasets are passed over.
        Of values of one token the last one holds.

        Args:
            batch: As the loader gave it: `sample_index` says which tokens its rows are, and `labels` (or `input_ids`)
                are compared with the dataset's.
            values: An array or tensor. Integers become integers of the column's type, floats are rounded to it.

        Returns:
            How many tokens it wrote.

        Raises:
            ConfigError: For values of another shape or kind, NaN, what the type cannot hold, and rows that are not the
                tokens of the dataset. Nothing of the batch is written.
            ReadError: Nothing can be written: the disk is full. What was flushed before stays.
        """
        found, samples, place, token, there = self._tokens_of(batch)
        given, expected = to_numpy(values), (*found.shape, *self.column.shape)
        if given.shape != expected:
            rule = f"{list(expected)}: a row for each of the batch, a position for each of its {self._at}, an item"
            fix = "reshape the values: values.reshape(...)"
            raise ConfigError(f"column {self.name}", f"values of shape {list(given.shape)}", rule, fix)

        def at(i: int) -> str:
            row, position = divmod(int(place[i]), found.shape[1])
            return f": sample {samples[row]}, position {position}"

        other = np.flatnonzero(there != found.reshape(-1)[place])
        if len(other):
            raise ConfigError(
                f"column {self.name}{at(other[0])} of {self._at}",
                f"token {int(found.reshape(-1)[place[other[0]]])}",
                f"{int(there[other[0]])}, as {self.dataset.path} has there",
                "pass batches as this loader gives them, without a transform that moves or replaces tokens",
            )
        chosen = given.reshape(-1, *self.column.shape)[place]
        self._writer.add(token, as_items(chosen, self.column, f"column {self.name}", at))
        self.tokens += len(token)
        return len(token)

    def has(self, batch: Mapping[str, Any]) -> bool:
        """Whether all tokens of a batch have values on the disk, as when this writer began, or flushed since.

        Those of a run that was killed need not be computed again.
        """
        token = self._tokens_of(batch)[3]
        return bool((self._writer.known(token) < self._writer.known(token + 1)).all())

    def flush(self) -> None:
        """Put on the disk what was written; done by itself: docs/distillation.md says how often."""
        self._writer.flush()

    def close(self) -> None:
        """Flush. The column is finished by `finish`, in one process."""
        self.flush()

    def finish(self, partial: bool = False) -> ColumnFile:
        """Make what all writers have written the column: to be called once, after they are closed.

        Args:
            partial: Whether tokens may have no value. First tokens of documents always may: nothing predicts them.

        Returns:
            What NAME.column.json says.

        Raises:
            ConfigError: Tokens lack a value. What was written stays, and can be continued.
            FormatError: The dataset is another one meanwhile, or a file is not as it was written.
            ReadError: A file cannot be read or written.
        """
        self.close()
        return finish(self.dataset.path, self.name, partial, self.dataset.files.roots.given)

    def put(self, document: str | int, values: Any) -> None:
        """Write the values of all tokens of a document, the end of text included: of its id, or its number.

        Raises: as `write`, and ConfigError for an id that none or several have, and another number of values.
        """
        found = [document] if isinstance(document, int) else self.dataset.find_document(document)
        where = f"column {self.name}: document {document!r}"
        if len(found) != 1:
            fix = "pass the number of a document"
            raise ConfigError(where, f"{len(found)} documents with this id", "one document", fix)
        start, stop = self.dataset.document_range(found[0])
        if len(values) != stop - start:
            fix = "pass an item for each token, the end of text included"
            raise ConfigError(where, f"{len(values)} items", f"{stop - start}, one for each token", fix)
        self.put_tokens(start, values, where)

    def put_tokens(self, start: int, values: Any, where: str) -> None:
        """Write the values of tokens [start, ...) of the dataset. where: what they are, for messages."""
        given = to_numpy(values)
        if given.shape[1:] != self.column.shape:
            found = f"items of shape {list(given.shape[1:])}"
            raise ConfigError(where, found, f"{list(self.column.shape)}, as of the column", "correct the file")
        items = as_items(given, self.column, where, lambda i: f", token {start + i:,}")
        self._writer.add(np.arange(start, start + len(given)), items)
        self.tokens += len(given)

    def _tokens_of(self, batch: Mapping[str, Any]) -> tuple[Any, Ints, Ints, Ints, Any]:
        """(tokens of a batch [B, S], its samples, places of tokens of the dataset among them, which these are, ids).

        Those that are labels, or inputs; padding, and what is excluded, is no token. A label whose input was taken out
        is omitted too: it was predicted from nothing.
        """
        keys = [key for key in _TOKENS[self._at] if key in batch]
        if "sample_index" not in batch or not keys:
            lacks = "sample_index" if "sample_index" not in batch else _TOKENS[self._at][0]
            fix = f"set outputs.{lacks}: true" if lacks == "sample_index" else f"keep {lacks!r} in the batch"
            raise ConfigError("batch", f"no {lacks}", "a batch as the loader gives it", fix)
        tokens, samples = to_numpy(batch[keys[0]]), to_numpy(batch["sample_index"]).astype(np.int64).reshape(-1)
        if tokens.ndim != 2 or len(samples) != len(tokens):
            said = f"{list(tokens.shape)} tokens and {len(samples)} samples"
            raise ConfigError("batch", said, "a row for each sample", "pass the batch as the loader gave it")
        blend, found = self._blend(), [np.zeros((5, 0), np.int64)]
        members, _, windows = blend.order.sample_many(samples)
        for index, rows in by_value(members):
            view = present(blend.views, index)
            if not self._is_mine(view.dataset):
                continue
            seq_len = view.member.seq_len or blend.config.needed_seq_len
            parts = ranges_of(Member(view=view, seq_len=seq_len), windows[rows].astype(np.int64))
            parts = parts.take(parts.since > samples[rows[parts.row]]).joined()
            start, stop = parts.start, parts.start + parts.inputs
            if self._at == "labels":
                start, stop = parts.start + 1, parts.stop
            some = np.flatnonzero(start < stop)
            start, stop, row, place = start[some], stop[some], rows[parts.row[some]], parts.place[some]
            cut = view.dataset.cut(start, stop)
            begins = place[cut.row] + cut.first + cut.base - start[cut.row]
            found.append(np.stack([cut.shard, row[cut.row], begins, cut.first, cut.end]))
        shard, row, place, first, end = np.concatenate(found, 1)
        reach = int((place + end - first).max(initial=0))
        if reach > tokens.shape[1]:
            fix = "gather what ranks of context parallelism have of a sample, and call write on one of them"
            raise ConfigError("batch", f"{tokens.shape[1]} {self._at} a sample", f"whole samples, {reach}", fix)
        order, ids = np.argsort(shard, kind="stable"), [np.zeros(0, np.int64)]
        shard, row, place, first, end = (column[order] for column in (shard, row, place, first, end))
        for number, some in by_value(shard):
            ids.append(items_of(self.dataset.files, number, first[some], end[some])["token"])
        flat, token = (ragged(one, end - first) for one in (row * tokens.shape[1] + place, first + self._starts[shard]))
        kept = np.flatnonzero(tokens.reshape(-1)[flat] >= 0)  # others were replaced by ignore_index
        return tokens, samples, flat[kept], token[kept], np.concatenate(ids)[kept]

    def _blend(self) -> Blend:
        """That in force: weights that were set live are in it."""
        if self._source is None:
            fix = "pass the loader: column_writer(..., loader=loader)"
            raise ConfigError(f"column {self.name}", "no loader", "the loader whose batches are written", fix)
        found: Blend = self._source if isinstance(self._source, Blend) else self._source.blend
        return found

    def check_source(self) -> None:
        """Raise ConfigError for a loader that does not read the dataset."""
        views = [view for view in self._blend().views if view is not None]
        if not any(self._is_mine(view.dataset) for view in views):
            read = ", ".join(f"{view.name} ({view.dataset.source})" for view in views[:4])
            raise ConfigError(
                f"column {self.name}: loader",
                f"other tokens than those of {self.dataset.path}: {read}",
                "a loader that reads this dataset, or a subset of it",
                f"make the loader of {self.dataset.path}, whose tokenizer the values belong to",
            )

    def _is_mine(self, dataset: Dataset) -> bool:
        return dataset.source_fingerprints[0] == self.column.stream_fingerprint


def column_writer(
    path: str | os.PathLike[str],
    name: str,
    dtype: str,
    shape: int | Sequence[int] = (),
    *,
    loader: Any = None,
    at: At = "labels",
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> ColumnWriter:
    """Begin to write a column of a dataset, or continue: in any order of its samples, from any number of processes.

    Args:
        path: Directory of a finished dataset, also an adopted one; of a subset, its source.
        name: Of the column.
        dtype: Of an element: u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 or bf16.
        shape: Of the item of a token: (), (k,) or (k, l).
        loader: Whose batches are written: any loader or dataset of this package, or its configuration if no weights are
            set while it runs. Not needed to finish.
        at: Whether values belong to the labels, as what a model predicts does, or to the inputs.
        roots: See `open_dataset`.

    Returns:
        The writer, a context manager with the methods `write`, `has` and `finish` (docs/distillation.md).

    Raises:
        ConfigError: For a column that is there already, or is being written with another type, and a loader that does
            not read the dataset.
        FormatError: The dataset is corrupt.
        ReadError: A file cannot be read or written.
    """
    dataset = open_dataset(path, roots)
    require_local(dataset.path)
    if dataset.viewed is not None:
        fix = f"pass its source, whose columns it has: {dataset.source}"
        raise ConfigError(dataset.path, "a subset", "a dataset with files of its own", fix)
    if dtype not in TYPES:
        raise unknown(f"column {name}: dtype", dtype, TYPES, "type")
    shape = (as_count(shape, "shape"),) if isinstance(shape, int) else tuple(as_count(one, "shape") for one in shape)
    column = ColumnFile(
        dtype=dtype,
        shape=shape,
        stream_fingerprint=dataset.stream_fingerprint,
        files=ItemFiles.absent(dataset.num_shards),
        created_by=CREATED_BY,
        extra={"at": at},
    )
    column.check(name, dataset.manifest)
    if name in {row.name for row in BATCH}:
        fix = "pass another NAME, which batches can have next to it"
        raise ConfigError(f"column {name}", f"{name!r}, an array of each batch", "a name that no array has", fix)
    if os.path.lexists(os.path.join(dataset.path, column_file(name))):
        raise taken(dataset.path, name)
    if loader is not None and not hasattr(loader, "blend"):
        loader = open_blend(loader)
    writer = ColumnWriter(dataset, name, column, loader)
    if loader is not None:
        writer.check_source()
    return writer
