"""Where annotations lie in a shard: documents looked up, characters turned into tokens, overlaps resolved."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.bulk import document_ranges
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.tools.concat import SOME_BOS
from conceptloader.format.write.track import BulkSpans
from conceptloader.ingest.align.spans import place_spans
from conceptloader.ingest.align.units import UNITS, lengths_in
from conceptloader.ingest.annotate.join import Annotations, Items
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.annotate.rows import WHOLE
from conceptloader.ingest.annotate.text import Read, known_text, read_texts
from conceptloader.ingest.build.unaligned import Losses
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.tokenizer import TextTokenizer, kept_tokenizer
from conceptloader.ingest.records.vocabulary import Concepts

_TOKENS = 1 << 18  # of documents that are decoded and encoded together


class Placer:
    """Places annotations in `ds`.

    unit: what their offsets count, None without any. losses: of what was placed so far.
    """

    def __init__(
        self, ds: Dataset, sources: Sequence[Source], options: AnnotateOptions, annotations: Annotations
    ) -> None:
        track, given = options.check(), options.span_unit or ds.manifest.extra.get("ingest", {}).get("span_unit")
        self.ds, self.sources, self.track, self.losses = ds, sources, options.track, Losses()
        self._row_name, offsets = annotations.where, annotations.offsets
        self.concepts = Concepts(track).dtype if track.codec == "concepts" else None  # whose union may be taken
        self.texts = known_text(ds, options.tokenizer, given) if offsets and given != "token" else None
        self.rules = replace(options, span_unit=given)
        self._sure = self.texts is None or given is not None or options.tokenizer is not None
        self.unit = UNITS[(given or "character") if self.texts else "token"].plural if offsets else None

    def place(self, some: Iterable[Items]) -> Iterator[tuple[int, dict[str, BulkSpans]]]:
        """(shard, spans by track) in tokens of the shard, for items sorted by document.

        The first with offsets show their unit, if nobody states it. Raises: InputError, ConfigError.
        """
        for items in some:
            if not self._sure and (items.stop != WHOLE).any():
                self._check_unit(items)
                self._sure = True
            for shard, part in self._by_shard(items.document):
                for few in self._portions(shard, items[part]):
                    yield shard, self._place_shard(shard, few)

    def _check_unit(self, items: Items) -> None:
        """Offsets in characters could not have been meant as offsets in tokens.

        Holds if one of `items` ends after the tokens of its document. Raises: ConfigError.
        """
        for shard, part in self._by_shard(items.document):
            documents, row = np.unique(items.document[part], return_inverse=True)
            first, stop = document_ranges(self.ds.files, shard, documents - self.ds.first_documents[shard])
            end = items.stop[part]
            if ((end != WHOLE) & (end > (stop - first)[row])).any():
                return
        raise ConfigError(
            self.sources[0].path,
            f"offsets that may count characters or tokens: of the first {len(items):,} annotations none ends "
            "after the tokens of its document",
            "offsets of a known unit",
            "say which: --span-unit character, as in build, or --span-unit token",
        )

    def _by_shard(self, documents: Ints) -> Iterator[tuple[int, slice]]:
        """(shard, where its documents are) for sorted ones."""
        shard_of = np.searchsorted(self.ds.manifest.shards.first_documents, documents, "right") - 1
        borders = [0, *(np.flatnonzero(np.diff(shard_of)) + 1).tolist(), len(documents)]
        for first, stop in pairwise(borders):
            if first < stop:
                yield int(shard_of[first]), slice(first, stop)

    def _portions(self, shard: int, items: Items) -> Iterator[Items]:
        """The items of a shard, cut between documents so that those whose text is read together are few."""
        if self.texts is None:
            yield items
            return
        documents, at = np.unique(items.document, return_index=True)
        first, stop = document_ranges(self.ds.files, shard, documents - self.ds.first_documents[shard])
        number = offsets_of(stop - first)[1:] // _TOKENS
        for a, b in pairwise([0, *at[np.flatnonzero(np.diff(number)) + 1].tolist(), len(items)]):
            yield items[a:b]

    def _place_shard(self, shard: int, items: Items) -> dict[str, BulkSpans]:
        documents, row = np.unique(items.document, return_inverse=True)
        first, stop = document_ranges(self.ds.files, shard, documents - self.ds.first_documents[shard])
        more = np.zeros_like(first)  # tokens to be held by spans of a whole document beside those that are placed
        if self.texts is None:
            read = Read(offsets_of(stop - first), np.zeros(len(documents), bool), None, None)
        else:
            # A bos, which the text does not say, belongs to spans of the whole document alone.
            mark = self.ds.manifest.extra.get("ingest", {}).get("bos")
            if mark == SOME_BOS:
                raise ConfigError(
                    self.ds.path,
                    "joined datasets of which some have a token in front of every document",
                    "this token in all of them, or in none",
                    "annotate them before they are joined, or pass offsets in tokens and --span-unit token",
                )
            more += mark is not None
            first = first + more
            read = read_texts(self.ds, self.texts, documents, shard, first, stop)
        spans = self._raw(items, row, read)
        batch = RowBatch(ids=[], texts=read.texts, tokens=None, spans={self.track: spans})
        try:
            known = None if items.own is None else self._kept
            decode = None if known is None else partial(self._decode, known, read, first + self.ds.shard_starts[shard])
            placed, lost = place_spans(batch, read.offsets, read.places, read.eos, self.rules, decode)
        except BadRow as error:
            where = self._where(items, int(np.argmax(row == error.row)))
            raise InputError.saying(where, error.problem) from error
        self.losses.note(batch, lost, lambda at: f"document {documents[at]}", self.rules.span_unit)
        offsets = read.offsets + offsets_of(read.eos)
        for name, found in placed.items():
            at = np.searchsorted(offsets, found.start, "right") - 1
            whole = (found.start == offsets[at]) & (found.end == offsets[at + 1])
            if self.rules.overlap == "union":
                self._check_whole(items, (more[row] != 0) & np.isin(row, at) & ~np.isin(row, at[whole]))
            kept = self._to_shard(found, offsets, first, items.records)
            placed[name] = replace(kept, start=kept.start - more[at] * whole)
        return placed

    def _check_whole(self, items: Items, cut: NDArray[np.bool_]) -> None:
        """Raises: InputError for one of a whole document without a span of all of it. cut: items of such documents."""
        cut = cut & (items.stop == WHOLE)
        if cut.any():
            raise InputError(
                self._where(items, int(np.argmax(cut))),
                "an annotation of the whole document, its bos included, which other spans divide",
                "one of the whole document alone, where overlaps become unions",
                "pass --overlap levels, or annotate twice, with another --track for whole documents",
            )

    @cached_property
    def _kept(self) -> TextTokenizer | None:
        return kept_tokenizer(self.ds)

    def _decode(self, tokenizer: TextTokenizer, read: Read, first: Ints, row: int, start: int, end: int) -> str | None:
        """The text of tokens of a document."""
        if not 0 <= start < end <= read.offsets[row + 1] - read.offsets[row]:
            return None
        return tokenizer.decode(self.ds.tokens(int(first[row]) + start, int(first[row]) + end).tolist())

    def _raw(self, items: Items, row: Ints, read: Read) -> RawSpans:
        """The items as spans of the documents that were read; row: of each item."""
        texts, unit = read.texts, self.rules.span_unit or "character"
        lengths = np.diff(read.offsets) if texts is None else lengths_in(texts, unit)
        whole = items.stop == WHOLE
        end = np.where(whole, lengths[row], items.stop)
        outside = end > lengths[row]
        if outside.any() and items.own is None:
            i = int(np.argmax(outside))
            raise InputError(
                self._where(items, i),
                f"[{items.start[i]}, {end[i]})",
                f"offsets within the {lengths[row[i]]} {UNITS['token' if texts is None else unit].plural} "
                "of the document",
                "the offsets are of another text or tokenizer, or in another unit: pass --span-unit",
            )
        if self.concepts is not None:
            labels = Ragged(items.records.values.view(self.concepts), items.records.offsets // self.concepts.itemsize)
        else:
            labels = Ragged(np.arange(len(items), dtype=np.uint32), np.arange(len(items) + 1))
        return RawSpans(row, items.start, end, labels, whole, items.own)

    def _to_shard(self, spans: BulkSpans, offsets: Ints, first: Ints, records: Ragged) -> BulkSpans:
        document = np.searchsorted(offsets, spans.start, "right") - 1
        shift = first[document] - offsets[document]
        data, record_offsets = spans.data, spans.offsets
        if self.concepts is None:
            chosen = records.take(np.frombuffer(data, "<u4").astype(np.int64))
            data, record_offsets = chosen.values.tobytes(), chosen.offsets
        return BulkSpans(spans.start + shift, spans.end + shift, spans.record, data, record_offsets)

    def _where(self, items: Items, i: int) -> str:
        """File, line and document of an item."""
        return f"{self._row_name(int(items.nth[i]))}: document {items.document[i]}"
