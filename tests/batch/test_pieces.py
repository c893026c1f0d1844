"""Samples that are pieces of a dataset end to end, as those of a loader that is taken over, by the bytes alone."""

from dataclasses import replace

import numpy as np
import pytest

from conceptloader.config import Outputs
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import make_view, small_view
from tests.oracle.data import read
from tests.oracle.samples import Sample
from tests.oracle.test_oracle import check_spans

SIZE = 20


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


def sample_of(data, pieces):
    """Its spans, and where each of its sequences begins: a piece, or a document."""
    sample, place = Sample({}, [], {track: [] for track in data.spans}, data.codecs), 0
    for piece in filter(None, pieces):
        inside = piece[: SIZE - place]
        shift, borders = place - piece.start, data.document_of
        sample.sequences.extend(p + shift for p in inside if p == piece.start or borders[p] != borders[p - 1])
        for track, found in sample.spans.items():
            held = (one for one in data.spans[track] if max(one.start, inside.start) < min(one.end, inside.stop))
            found += [one.cut(inside.start, inside.stop, shift) for one in held]
        place += len(inside)
    return sample


def test_pieces_are_read_end_to_end(reader, tmp_path):
    rng, known = np.random.default_rng(3), [read(tmp_path / name) for name in "01"]
    for _ in range(40):
        members = rng.integers(0, 2, 4)
        chosen = [pieces_of(reader.views[k].dataset, rng) for k in members]
        samples = rng.integers(0, 1000, 4).astype(np.uint64)
        batch = reader.read(samples, picked=(members, np.zeros(4, np.uint64)), ranges=chosen)
        borders = [0]
        for row, (member, pieces) in enumerate(zip(members, chosen, strict=True)):
            data, places = known[member], [p for piece in pieces for p in piece][: SIZE + 1]
            assert batch["input_ids"][row].tolist() == data.tokens[places[:-1]].tolist()
            assert batch["labels"][row].tolist() == data.tokens[places[1:]].tolist()
            assert batch["document_ids"][row].tolist() == data.document_of[places[:-1]].tolist()
            sample = sample_of(data, pieces)
            lengths = np.diff([*sample.sequences, SIZE])
            assert batch["position_ids"][row].tolist() == np.concatenate([*map(np.arange, lengths)]).tolist()
            borders += (row * SIZE + lengths.cumsum()).tolist()
            for track in sample.spans:
                found = {name: value[row] for name, value in batch.items() if name.startswith(track)}
                check_spans({"layout": "padded", "max_spans": SIZE}, found, track, sample, f"row {row}")
        assert batch["cu_seqlens"].tolist() == borders
        assert batch["dataset_id"].tolist() == members.tolist()


@pytest.mark.parametrize("pieces", [[(0, SIZE)], [(0, 5), (-5, 20)], [(-1, SIZE)]], ids=["too few", "beyond", "before"])
def test_pieces_that_are_not_there_are_refused(reader, pieces):
    """The second piece is counted from the end of the dataset."""
    zero, end = np.zeros(1, np.uint64), reader.views[0].dataset.num_tokens
    given = [[range(a + k * end, b + k * end) for k, (a, b) in enumerate(pieces)]]
    with pytest.raises(ConfigError, match=r"^sample 0: found \d+ tokens in \d ranges, .* expected 21 of its"):
        reader.read(zero, picked=(np.zeros(1, np.int64), zero), ranges=given)


def test_a_sample_with_a_quarantined_range_is_left_out(tmp_path):
    """By where the range is in the dataset, whatever place it has in the sample."""
    small_view(tmp_path / "a", SIZE, 1)
    view = make_view(tmp_path / "a", SIZE, exclude=[{"dataset": "a", "tokens": [50, 53]}])
    reader = BatchReader(None, [view], decide_layout([view], SIZE, Outputs(), {}))
    chosen = [[range(8), range(45, 51), range(60, 70)], [range(8), range(53, 70)]]
    batch = reader.read(np.zeros(2, np.uint64), picked=(np.zeros(2, np.int64), np.zeros(2, np.uint64)), ranges=chosen)
    assert batch["loss_mask"].tolist() == [[0] * SIZE, [1] * SIZE]
    tokens = view.dataset.tokens(0, 70).tolist()
    assert batch["input_ids"].tolist() == [[view.dataset.tokenizer.eos_id] * SIZE, tokens[:8] + tokens[53:65]]
