"""Sorted annotations into the files of tracks: in this process, or shards in several ones."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.workers import Tell, run_tasks
from conceptloader.format.read.files import Files, load_manifest, require_same
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec.columns import Ints
from conceptloader.format.write.track import BulkSpans
from conceptloader.ingest.align.units import UNITS
from conceptloader.ingest.annotate.join import items_of
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.annotate.place import Placer
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.annotate.text import known_text
from conceptloader.ingest.annotate.write import Written, write_tracks
from conceptloader.ingest.build.unaligned import Losses
from conceptloader.ingest.database import PROBLEM
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.vocabulary import Concepts
from conceptloader.storage.reads import named

_TASKS = 4  # for each worker, so that all end at about the same time
_WITH_TEXT, _WITHOUT = 1 << 16, 1 << 20  # annotations that take longer than processes take to start


class Placing:
    """Places the tables of `Annotations.join` in `ds`.

    offsets: whether any annotation has some. unit: what they count, None without. losses: of what was placed so far.
    """

    def __init__(self, ds: Ranges, sources: Sequence[Source], options: AnnotateOptions, offsets: bool) -> None:
        track = options.check()
        concepts = Concepts(track).dtype if track.codec == "concepts" else None
        unit = options.span_unit or ds.manifest.extra.get("ingest", {}).get("span_unit")
        texts = known_text(ds, options.tokenizer, unit) if offsets and unit != "token" else None
        rules = replace(options.rules, span_unit=unit)
        self._placer = Placer(ds=ds, track=options.track, sources=sources, concepts=concepts, rules=rules, texts=texts)
        self._ds, self._sources, self._options, self._offsets = ds, sources, options, offsets
        self._sure = texts is None or unit is not None or options.tokenizer is not None
        self.unit = UNITS[(unit or "character") if texts else "token"].plural if offsets else None
        self.losses = self._placer.losses

    def checked(self, tables: Iterable[Any]) -> Iterator[Any]:
        """The tables; the first with offsets shows their unit, if nobody states it. Raises: ConfigError."""
        sure = self._sure
        for table in tables:
            if not sure and ((items := items_of(table)).stop != WHOLE).any():
                self._placer.check_unit(items)
                sure = True
            yield table

    def place(self, tables: Iterable[Any]) -> Iterator[tuple[int, dict[str, BulkSpans]]]:
        """(shard, spans by track) in tokens of the shard. Raises: InputError."""
        for table in tables:
            yield from self._placer.place(items_of(table))

    def write(
        self, tables: Iterable[Any], count: int, directory: str, workers: int,
        roots: Sequence[str | os.PathLike[str]] | None,
    ) -> Iterator[Written]:  # fmt: skip
        """Write the tracks of `count` annotations to files in `directory`.

        Many of them by processes, of which each opens the dataset, see `open_dataset` for roots, and writes all files
        of some shards.
        """
        worth = _WITH_TEXT if self._placer.texts else _WITHOUT
        if workers > 1 and count >= worth and len(self._ds.manifest.shards) > 1:
            return self._write_by(workers, tables, directory, roots)
        return self.write_here(tables, directory)

    def write_here(self, tables: Iterable[Any], directory: str) -> Iterator[Written]:
        """The same in this process."""
        return write_tracks(directory, self._options.check(), self._ds.manifest, self.place(tables))

    def _write_by(
        self, workers: int, tables: Iterable[Any], directory: str, roots: Sequence[str | os.PathLike[str]] | None
    ) -> Iterator[Written]:
        path, done = os.path.join(directory, "sorted.arrow"), dict[int, tuple[list[Written], Losses]]()
        parts = self._keep(tables, path, _TASKS * workers)

        def end(i: int, result: tuple[list[Written], Losses], error: Exception | None) -> None:
            if error is not None:
                raise error
            done[i] = result

        task = _WriteSome(
            dataset=self._ds.path, roots=roots, identity=self._ds.manifest.identity, sources=self._sources,
            options=self._options, offsets=self._offsets, directory=directory, path=path,
        )  # fmt: skip
        run_tasks(task, parts, workers, lambda *_: None, end)
        os.remove(path)
        for _, (written, losses) in sorted(done.items()):
            self.losses.add(losses)
            yield from written

    def _keep(self, tables: Iterable[Any], path: str, most: int) -> list[range]:
        """Write the tables to a file. Returns: its batches in at most so many parts, each with all of its shards."""
        arrow = need("pyarrow", PROBLEM)
        shards, rows, file = list[int](), list[int](), None
        with named(os.path.dirname(path), "written"), ExitStack() as opened:
            for table in tables:
                for shard, part in self._placer.by_shard(table["document"].to_numpy()):
                    file = file or opened.enter_context(arrow.ipc.new_file(path, table.schema))
                    file.write_batch(table[part].combine_chunks().to_batches()[0])
                    shards.append(shard)
                    rows.append(part.stop - part.start)
        return _parts(np.array(shards), np.array(rows), most)


def _parts(shards: Ints, rows: Ints, most: int) -> list[range]:
    """Batches of shards, with so many rows, in at most `most` parts of about equal rows, cut between shards."""
    first = np.append(True, np.diff(shards) > 0)  # of its shard
    part = (np.cumsum(rows) - rows) * most // rows.sum()
    part = np.maximum.accumulate(np.where(first, part, 0))
    return [range(a, b) for a, b in pairwise([0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(rows)])]


@dataclass(frozen=True, kw_only=True)
class _WriteSome:
    """The task of a worker, which is called with the batches of `path` that are to be placed."""

    dataset: str
    roots: Sequence[str | os.PathLike[str]] | None
    identity: str
    sources: Sequence[Source]
    options: AnnotateOptions
    offsets: bool
    directory: str
    path: str

    @cached_property
    def _placing(self) -> Placing:
        """That of the process, which opens the dataset once."""
        manifest, allowed = load_manifest(self.dataset, self.roots)
        require_same(self.dataset, manifest.identity, self.identity)
        return Placing(Ranges(Files(manifest, allowed)), self.sources, self.options, self.offsets)

    def __call__(self, batches: range, tell: Tell) -> tuple[list[Written], Losses]:
        arrow = need("pyarrow", PROBLEM)
        with arrow.memory_map(self.path) as source, arrow.ipc.open_file(source) as file:

            def tables() -> Iterator[Any]:
                for i in batches:
                    tell(None)  # which ends this process if its parent is gone
                    yield arrow.Table.from_batches([file.get_batch(i)])

            written = [*self._placing.write_here(tables(), self.directory)]
        losses = Losses(self._placing.losses)
        self._placing.losses.clear()
        return written, losses
