"""Batches of packs: the plain reader against what was put into a dataset, the compiled one against the plain one."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import decide_layout
from conceptloader.batch.plain import ReferenceReader
from conceptloader.blend import ConceptOptions, Outputs
from conceptloader.blend.packing import Packing
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import RawDocument, random_documents, write_dataset
from tests.batch.compare import assert_same
from tests.corpora.known import EOS
from tests.packing.packed import make_view, random_packs


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_plain_reader(tmp_path: Path, seed: int) -> None:
    view, _, layout = random_packs(tmp_path, 100 + seed)
    rng = np.random.default_rng(seed)
    reader = CompiledReader(None, [None, view], layout)
    for _ in range(2):
        size = int(rng.integers(0, 9))
        packs = rng.integers(0, view.count, size).astype(np.uint64)
        arguments = np.ones(size, np.int64), packs, rng.integers(0, 1 << 40, size).astype(np.uint64)
        wanted = ReferenceReader(None, [None, view], layout).read(arguments[2], picked=arguments[:2])
        assert_same(reader.read(arguments[2], picked=arguments[:2]), wanted)
        assert_same(pickle.loads(pickle.dumps(reader)).read(arguments[2], picked=arguments[:2]), wanted)


@pytest.mark.parametrize("seed", range(40))
def test_each_token_is_an_input_once_with_its_label_position_and_concepts(tmp_path: Path, seed: int) -> None:
    view, truth, layout = random_packs(tmp_path, 200 + seed)
    outputs = Outputs(cu_seqlens=True, document_ids=True)
    layout = BatchLayout(seq_len=layout.seq_len, outputs=outputs, tracks=layout.tracks)
    size, packs = layout.seq_len, np.arange(view.count, dtype=np.uint64)
    batch = ReferenceReader(None, [view], layout).read(packs, picked=(np.zeros(len(packs), np.int64), packs))
    ends = [*truth.starts[1:], len(truth.tokens)]
    bad = {token for low, high in view.quarantine for token in range(low, high)}
    seen = np.zeros(len(truth.tokens), np.int64)
    borders = [0]
    for pack in packs.tolist():
        parts = view.samples.parts(pack)
        at = 0
        for part in parts:
            assert part.place == at
            at += part.tokens
            tokens = range(part.start, part.start + part.tokens)
            goes_on = tokens.stop < ends[part.document]
            seen[part.start : tokens.stop] += 1
            row = slice(part.place, at)
            borders += [pack * size + part.place] if part.place else []
            assert batch["position_ids"][pack, row].tolist() == list(range(part.tokens))
            if bad & {*tokens, *([tokens.stop] if goes_on else [])}:
                assert not batch["loss_mask"][pack, row].any()
                assert (batch["document_ids"][pack, row] == -1).all()
                continue
            assert batch["input_ids"][pack, row].tolist() == truth.tokens[part.start : tokens.stop]
            assert (batch["document_ids"][pack, row] == part.document).all()
            following = [truth.tokens[t + 1] if t + 1 < ends[part.document] else EOS for t in tokens]
            assert batch["labels"][pack, row].tolist() == following
            trained = [float(t + 1 < ends[part.document] and truth.loss[t + 1]) for t in tokens]
            assert batch["loss_mask"][pack, row].tolist() == trained
            for track in layout.tracks:
                if track.max_spans == 3:
                    continue
                slots = batch[f"{track.name}_span_index"][pack, row]
                for token, slot in zip(tokens, slots.tolist(), strict=True):
                    span = truth.spans[track.name][token]
                    assert (slot < 0) == (span is None)
                    if span is not None and not track.ragged:
                        assert batch[f"{track.name}_ids"][pack, slot, : len(span[1])].tolist() == list(span[1])
                        begin, end = batch[f"{track.name}_spans"][pack, slot].tolist()
                        assert begin <= part.place + token - part.start < end
        borders += [pack * size + at] if 0 < at < size else []
        borders.append((pack + 1) * size)
        assert (batch["input_ids"][pack, at:] == EOS).all()
        assert not batch["loss_mask"][pack, at:].any()
        assert batch["position_ids"][pack, at:].tolist() == list(range(size - at))
    assert batch["cu_seqlens"].tolist() == borders
    closed = [(a, b) for a, b in view.samples._closed]
    if not closed and view.samples.packing.overflow == "split":
        assert (seen == 1).all()
    assert seen.max() <= 1


@pytest.mark.parametrize("seed", range(20))
def test_the_inverse_finds_every_part_of_a_document(tmp_path: Path, seed: int) -> None:
    view, truth, _ = random_packs(tmp_path, 300 + seed)
    packs = view.samples
    held: dict[int, list] = {document: [] for document in range(len(truth.starts))}
    for pack in range(len(packs)):
        for part in packs.parts(pack):
            held[part.document].append((pack, part))
    for document, found in held.items():
        assert sorted(packs.parts_of(document)) == sorted(found)


def test_samples_of_a_view_are_what_a_batch_holds(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "d", random_documents(40, mean_length=20), shards=2)
    view = make_view(Path(path), Packing(seq_len=32, bins=4))
    layout = decide_layout([view], 32, Outputs(), {"concepts": ConceptOptions()})
    packs = np.arange(view.count, dtype=np.uint64)
    batch = CompiledReader(None, [view], layout).read(packs, picked=(np.zeros(len(packs), np.int64), packs))
    for k in packs.tolist():
        sample = view[k]
        count = len(sample["tokens"])
        assert batch["input_ids"][k, :count].tolist() == sample["tokens"].tolist()
        spans = batch["concepts_num_spans"][k]
        assert batch["concepts_spans"][k, :spans, 0].tolist() == sample["concepts"].start.tolist()
        assert batch["concepts_spans"][k, :spans, 1].tolist() == sample["concepts"].end.tolist()
        assert len(sample["documents"]) == len(view.samples.parts(k))


def test_more_pieces_than_there_is_room_for(tmp_path: Path) -> None:
    raw = [RawDocument(id=str(k), tokens=[k % 900 + 1]) for k in range(20000)]
    view = make_view(Path(write_dataset(tmp_path / "d", raw)), Packing(seq_len=256, bins=64))
    layout = decide_layout([view], 256, Outputs(cu_seqlens=True))
    packs = np.array([0, 63, 64, view.count - 1], np.uint64)
    arguments = np.zeros(4, np.int64), packs, packs
    wanted = ReferenceReader(None, [view], layout).read(arguments[2], picked=arguments[:2])
    assert wanted["max_seqlen"] == 256  # the padding of the last one
    assert_same(CompiledReader(None, [view], layout).read(arguments[2], picked=arguments[:2]), wanted)


def test_what_is_refused_is_said_by_both_readers(tmp_path: Path) -> None:
    raw = [RawDocument(id=str(k), tokens=[1] * n) for k, n in enumerate([5, 9, 3])]
    view = make_view(Path(write_dataset(tmp_path / "d", raw)), Packing(seq_len=8, bins=4, overflow="refuse"))
    layout = decide_layout([view], 8, Outputs())
    zero = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    for reader in (ReferenceReader, CompiledReader):
        with pytest.raises(ConfigError, match=r"found refuse, and document 1 of 9 tokens, expected at most 8"):
            reader(None, [view], layout).read(zero[2], picked=zero[:2])


def test_no_document_table(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype="<u2")
    tokens.tofile(tmp_path / "tokens.bin")
    flat = str(tmp_path / "tokens.bin")
    assert main(["adopt", flat, "--out", str(tmp_path / "d"), "--kind", "flat", "--dtype", "uint16"]) == 0
    with pytest.raises(ConfigError, match=r"datasets\.a: packing: found no document table in shard 0"):
        cl.open_blend({"seq_len": 8, "packing": {"bins": 4}, "datasets": {"a": {"path": str(tmp_path / "d")}}})
