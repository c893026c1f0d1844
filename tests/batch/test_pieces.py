"""Samples that are pieces of a dataset end to end, as those of a loader that is taken over."""

from dataclasses import replace

import numpy as np
import pytest

from conceptloader.config import Outputs
from conceptloader.errors import ConfigError
from conceptloader.format.read.values import Spans
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, small_view

SIZE = 20
OUTPUTS = Outputs(document_ids=True, cu_seqlens=True, position_ids="document")


@pytest.fixture(params=["dense", "spans"])
def reader(request, tmp_path):
    (one, layout), (two, _) = (small_view(tmp_path / str(k), SIZE, 3 + k, request.param) for k in range(2))
    return BatchReader(None, [one, replace(two, name="y", dataset_id=1)], layout)


def pieces_of(dataset, rng):
    """In any order, some empty, each in one shard, of seq_len + 1 tokens or a few more."""
    found, total = [], 0
    while total < SIZE + 1:
        shard = int(rng.integers(dataset.num_shards))
        low, high = dataset.shard_starts[shard : shard + 2]
        start = int(rng.integers(low, high))
        found.append(range(start, min(high, start + int(rng.integers(0, 12)))))
        total += len(found[-1])
    return found


def cut(pieces, size):
    """The pieces of the first `size` tokens."""
    found = []
    for piece in pieces:
        found.append(piece[:size])
        size -= len(found[-1])
    return [piece for piece in found if piece]


def end_to_end(parts, places):
    """Spans of a track in several parts of a sample, the first token of each of which is at its place there."""
    return Spans(
        start=np.concatenate([part.start + place for part, place in zip(parts, places, strict=True)]),
        end=np.concatenate([part.end + place for part, place in zip(parts, places, strict=True)]),
        begins_before=np.concatenate([part.begins_before for part in parts]),
        ends_after=np.concatenate([part.ends_after for part in parts]),
        records=[record for part in parts for record in part.records],
        codec=parts[0].codec,
        where=parts[0].where,
    )


def test_pieces_are_read_end_to_end(reader):
    rng = np.random.default_rng(3)
    for _ in range(40):
        members = rng.integers(0, 2, 4)
        datasets = [reader.views[k].dataset for k in members]
        chosen = [pieces_of(dataset, rng) for dataset in datasets]
        samples = rng.integers(0, 1000, 4).astype(np.uint64)
        batch = reader.read(samples, picked=(members, np.zeros(4, np.uint64)), ranges=chosen)
        borders = [0]
        for row, (dataset, pieces) in enumerate(zip(datasets, chosen, strict=True)):
            tokens = np.concatenate([dataset.tokens(piece.start, piece.stop) for piece in pieces])
            assert batch["input_ids"][row].tolist() == tokens[:SIZE].tolist()
            assert batch["labels"][row].tolist() == tokens[1 : SIZE + 1].tolist()
            inside = cut(pieces, SIZE)
            held = [dataset.documents_in(piece.start, piece.stop) for piece in inside]
            lengths = [np.diff([*np.maximum(d.first, p.start), p.stop]) for d, p in zip(held, inside, strict=True)]
            numbers = [documents.ids.repeat(of) for documents, of in zip(held, lengths, strict=True)]
            assert batch["document_ids"][row].tolist() == np.concatenate(numbers).tolist()
            ends = np.concatenate(lengths).cumsum()
            places = np.cumsum([0, *map(len, inside)])
            positions = [range(n) for n in np.concatenate(lengths).tolist()]
            assert batch["position_ids"][row].tolist() == np.concatenate(positions).tolist()
            borders += (row * SIZE + ends).tolist()
            for track in ("concepts", "topics"):
                spans = end_to_end([dataset.spans(track, p.start, p.stop) for p in inside], places[:-1].tolist())
                assert batch[f"{track}_num_spans"][row] == len(spans)
                found = batch[f"{track}_spans"][row, : len(spans)]
                assert found.T.tolist() == [spans.start.tolist(), spans.end.tolist()]
                flags = spans.begins_before + 2 * spans.ends_after
                assert batch[f"{track}_flags"][row, : len(spans)].tolist() == flags.tolist()
                ids = [ids.tolist() for ids in spans.decode()]
                counts = batch[f"{track}_counts"][row].tolist()
                rows = batch[f"{track}_ids"][row].tolist()
                assert [one[:count] for one, count in zip(rows, counts, strict=True)][: len(ids)] == ids
        assert batch["cu_seqlens"].tolist() == borders
        assert batch["dataset_id"].tolist() == members.tolist()


@pytest.mark.parametrize(
    "pieces",
    [
        lambda tokens: [range(SIZE)],
        lambda tokens: [range(5), range(tokens - 5, tokens + 20)],
        lambda tokens: [range(-1, SIZE)],
    ],
    ids=["too few", "beyond the end", "before the beginning"],
)
def test_pieces_that_are_not_there_are_refused(reader, pieces):
    zero = np.zeros(1, np.uint64)
    given = [pieces(reader.views[0].dataset.num_tokens)]
    with pytest.raises(ConfigError, match=r"^sample 0: found \d+ tokens in \d ranges, .* expected 21 of its"):
        reader.read(zero, picked=(np.zeros(1, np.int64), zero), ranges=given)


def test_a_sample_with_a_quarantined_range_is_left_out(tmp_path):
    """By where the range is in the dataset, whatever place it has in the sample."""
    dataset = small_view(tmp_path / "a", SIZE, 1)[0].dataset
    views = [make_view("a", dataset, 0, 0, 1, SIZE, quarantine=((50, 53),))]
    reader, samples = BatchReader(None, views, decide_layout(views, SIZE, OUTPUTS, {})), np.zeros(2, np.uint64)
    chosen = [[range(8), range(45, 51), range(60, 70)], [range(8), range(53, 70)]]
    batch = reader.read(samples, picked=(np.zeros(2, np.int64), samples), ranges=chosen)
    assert batch["loss_mask"].tolist() == [[0] * SIZE, [1] * SIZE]
    assert (batch["document_ids"] >= 0).all(1).tolist() == [False, True]
    wanted = [*dataset.tokens(0, 8).tolist(), *dataset.tokens(53, 65).tolist()]
    assert batch["input_ids"].tolist() == [[dataset.tokenizer.eos_id] * SIZE, wanted]
