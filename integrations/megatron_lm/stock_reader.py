"""Reads the samples of a training that is taken over: pieces of documents, tokens and concepts alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.batch.layout import Batch, BatchLayout
from conceptloader.batch.plain import ReferenceReader
from conceptloader.blend import View
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.values import Documents, Spans
from conceptloader.order.progress.spec import Member

from .samples import Ints
from .takeover import Piece, StockOrder


@dataclass(frozen=True)
class Joined:
    """The tokens of some pieces of a dataset, end to end, with the part of Dataset's interface that a batch needs."""

    dataset: Dataset
    pieces: Sequence[Piece]

    mode = "token-stream"

    @property
    def files(self) -> Any:
        return self.dataset.files

    @property
    def tracks(self) -> Any:
        return self.dataset.tracks

    @property
    def tokenizer(self) -> Any:
        return self.dataset.tokenizer

    @property
    def borders(self) -> Ints:
        """Where each piece begins, and the end of the last one."""
        return np.cumsum([0, *(piece.stop - piece.start for piece in self.pieces)])

    def cut(self, start: int, stop: int) -> list[tuple[int, Piece]]:
        """(position, tokens of the dataset) of each part of [start, stop)."""
        parts = []
        for at, piece in zip(self.borders.tolist(), self.pieces, strict=False):
            a, b = max(start - at, 0), min(stop - at, piece.stop - piece.start)
            if a < b:
                parts.append((at + a, Piece(piece.start + a, piece.start + b)))
        return parts

    def ahead(self, start: int, stop: int) -> Iterator[tuple[Dataset, int, int]]:
        """As Dataset.ahead."""
        return chain.from_iterable(self.dataset.ahead(p.start, p.stop) for _, p in self.cut(start, stop))

    def read(self, start: int, stop: int) -> dict[str, Any]:
        """As Dataset.read, without documents and tracks."""
        parts = [self.dataset.read(piece.start, piece.stop) for _, piece in self.cut(start, stop)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def documents_in(self, start: int, stop: int) -> Documents:
        """As Dataset.documents_in: every piece lies in one document."""
        parts = self.cut(start, stop)
        ids = [self.dataset.documents_in(piece.start, piece.start + 1).ids for _, piece in parts]
        return Documents(np.array([at for at, _ in parts]), np.concatenate(ids))

    def spans(self, track: str, start: int, stop: int) -> Spans:
        """As Dataset.spans; a span ends where its piece does."""
        parts = [(at - start, self.dataset.spans(track, p.start, p.stop)) for at, p in self.cut(start, stop)]
        return Spans(
            np.concatenate([spans.start + at for at, spans in parts]),
            np.concatenate([spans.end + at for at, spans in parts]),
            np.concatenate([spans.begins_before for _, spans in parts]),
            np.concatenate([spans.ends_after for _, spans in parts]),
            [record for _, spans in parts for record in spans.records],
            self.dataset.codec(track),
        )

    def file_of(self, kind: str, token: int) -> str:
        """As Dataset.file_of."""
        return self.dataset.file_of(kind, self.cut(token, token + 1)[0][1].start)


def joined_view(dataset: Any, dataset_id: int, seq_length: int, tracks: tuple[str, ...]) -> View:
    """A view of one window: all that a sample, or a layout, looks at."""
    member = Member(
        dataset=str(dataset_id), seq_len=seq_length, windows=1, stream_fingerprint="", token_range=(0, seq_length + 1)
    )
    samples: Any = None  # read as a whole, never by number
    return View(
        name=str(dataset_id), dataset_id=dataset_id, dataset=dataset, member=member, samples=samples, start=0,
        tracks=tuple(track for track in tracks if track in dataset.tracks),
    )  # fmt: skip


class StockReader:
    """Batches of a StockOrder.

    Documents end where Megatron sees them end, at its end-of-document token: masks do not change in mid-run.

    datasets: of ours, in the sequence of the blend; each reads the .bin file that Megatron read.
    eod: the end-of-document token; eod_mask_loss: whether its labels give no loss.
    """

    def __init__(
        self, order: StockOrder, datasets: Sequence[Dataset], layout: BatchLayout, eod: int, eod_mask_loss: bool
    ) -> None:
        self.order, self.datasets, self.layout = order, list(datasets), layout
        self.tracks = tuple(track.name for track in layout.tracks)
        self.eod, self.eod_mask_loss = eod, eod_mask_loss

    def read(self, samples: npt.NDArray[np.uint64]) -> Batch:
        """The batch of sample indices uint64 [B], with `pieces`: borders of the pieces in the B * S inputs."""
        size, views, pieces = self.layout.seq_len, [], [0]
        for row, index in enumerate(samples.tolist()):
            k, parts = self.order.sample(index)
            joined = Joined(self.datasets[k], parts)
            views.append(joined_view(joined, k, size, self.tracks))
            pieces += [row * size + border for border in joined.borders[1:-1].tolist() if border < size]
            pieces.append((row + 1) * size)
        order: Any = None  # the windows are given
        reader = ReferenceReader(order, views, self.layout)
        rows = np.arange(len(views))
        batch = reader.read_windows(rows, np.zeros(len(rows), np.uint64), samples)
        ends = batch["input_ids"] == self.eod
        if self.eod_mask_loss:
            batch["loss_mask"][ends] = 0
        ends[:, -1] = True  # a sample always ends a sequence
        batch["cu_seqlens"] = np.concatenate(([0], np.flatnonzero(ends.reshape(-1)) + 1)).astype(np.int32)
        batch["pieces"] = np.array(pieces, np.int32)
        return batch
