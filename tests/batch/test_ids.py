"""Ids that a dataset cannot have: they are refused, and where they are is said, in native and adopted datasets."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import FormatError, InputError
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.loader.batch.open import open_reader
from tests.corpora.small import written
from tests.raises import cells, raises

SEQ_LEN, SHARD = 8, 80  # the windows of a shard do not end where it does
TOKENIZER = {"name": "some", "eos_id": None}
OUTPUTS = [{}, {"shared_labels": True, "loss_mask": False, "position_ids": "off"}]


def reader(path, outputs=None, concepts=None, **more):
    config = {
        "seq_len": SEQ_LEN,
        "datasets": {"a": {"path": str(path)}},
        "loader": {"verify_files": False},  # else the damage is met at opening
        "outputs": outputs or {},
        "tracks": concepts or {},
        "order": "sequential",
        **more,
    }
    return open_reader(cl.open_blend(cl.load_config(config)), dp_rank=3)


def window(batches, number):
    return batches.read(np.array([number], np.uint64))


def native(path, vocab_size, track=None):
    """Two shards of 80 tokens; with a track, `track` is its encoding."""
    tokenizer = cl.writing.Tokenizer(vocab_size=vocab_size, **TOKENIZER) if vocab_size else None
    tracks = {"concepts": {"vocabulary": ["a", "b", "c"], "encoding": track}} if track else {}
    spans = {"concepts": [(at, at + 4, [at % 3, 2]) for at in range(0, SHARD, 5)]} if track else {}
    return written(path, *[[(range(SHARD), spans)]] * 2, tokenizer=tokenizer, tracks=tracks)


def damage(file, at, value, dtype):
    with file.open("r+b") as target:
        target.seek(at)
        target.write(np.array(value, dtype).tobytes())


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize(("vocab_size", "dtype"), [(300, "u2"), (70_000, "u4")])
@pytest.mark.parametrize("encoding", [None, "dense"])
def test_a_token_outside_of_the_vocabulary(tmp_path, outputs, vocab_size, encoding, dtype):
    path = native(tmp_path / "ds", vocab_size, encoding)
    file, concepts = path / "00001.stream.bin", {"concepts": {}} if encoding else {}
    item = int(dtype[1]) + (4 if encoding else 0)
    for at, broken in ((3, [10]), (8, [10, 11])):  # token 88 is the last label of one window and the first of the next
        whole = file.read_bytes()
        damage(file, at * item, vocab_size, dtype)
        batches = reader(path, outputs, concepts)
        for number in {*range(19)} - {*broken}:
            assert window(batches, number)["input_ids"].max() < vocab_size
        for number in broken:
            with raises(FormatError, f"sample {number}, dp_rank 3: {file}", fix="DATASET --full") as raised:
                window(batches, number)
            for part in (f"id {vocab_size} as token {at} of shard 1", f"token {SHARD + at} of", f"[0, {vocab_size})"):
                assert part in str(raised.value)
        damage(file, at * item, vocab_size - 1, dtype)
        window(reader(path, outputs, concepts), broken[0])
        file.write_bytes(whole)


ADOPTED = """
u2 | 100 | 99 | 100
u2 | 100_000 | 65_535 | 65_535
u2 | 0 | 65_535 | 65_535
u4 | 0 | 4294967295 | 4294967295
i4 | 100 | 99 | -1
i4 | 0 | 2147483647 | -1
i8 | 100 | 99 | -9223372036854775808
i8 | 4294967296 | 4294967295 | 4294967296
i8 | 0 | 4294967295 | -1
i8 | 0 | 0 | 9223372036854775807
"""
"""Type, size of the vocabulary (0: not known), an id that may be, and one that may not (equal: there is none)."""


@pytest.mark.parametrize(("dtype", "vocab_size", "good", "bad"), cells(ADOPTED))
def test_adopted_files(tmp_path, monkeypatch, dtype, vocab_size, good, bad):
    vocab_size, good, bad = map(int, (vocab_size, good, bad))
    tokens = np.zeros(SHARD, f"<{dtype}")
    known = cl.writing.Tokenizer(vocab_size=vocab_size, **TOKENIZER) if vocab_size else None
    for value in {good, bad}:
        tokens[11] = value
        tokens.tofile(tmp_path / f"{value}.bin")
    if known and good < bad:
        with raises(InputError, f"{bad}.bin", f"token {bad}"):
            adopt([tmp_path / f"{bad}.bin"], tmp_path / str(bad), dtype=dtype, tokenizer=known)
    monkeypatch.setattr("conceptloader.ingest.adopt.adopt.check_ids", lambda *_: None)  # as if it came later
    for value in {good, bad}:
        adopt([tmp_path / f"{value}.bin"], tmp_path / str(value), dtype=dtype, tokenizer=known)
    assert window(reader(tmp_path / str(good)), 1)["input_ids"][0, 3] == good
    if bad != good:
        batches = reader(tmp_path / str(bad))
        window(batches, 0)
        with pytest.raises(FormatError, match=rf"sample 1, dp_rank 3: .*bin: found id {bad} as token 11 of shard 0"):
            window(batches, 1)
        with pytest.raises(FormatError, match=f"found id {bad}"):
            cl.open_dataset(tmp_path / str(bad)).tokens(8, 12)


@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_a_concept_outside_of_the_vocabulary(tmp_path, encoding, layout):
    path = native(tmp_path / "ds", 300, encoding)
    file = path / "00001.concepts.data"
    options = {"concepts": {"layout": layout}}
    for bad in (3, 2**32 - 1):
        damage(file, 4, bad, "<u4")  # the second concept of the span at tokens 80 to 84
        batches = reader(path, concepts=options)
        for number in (0, 9, 11):
            window(batches, number)
        with pytest.raises(FormatError) as raised:
            window(batches, 10)
        for part in (f"sample 10, dp_rank 3: {file} (shard 1): found concept id {bad} ", "token 80 of", "below 3"):
            assert part in str(raised.value)
    spans = cl.open_dataset(path, verify_files=False).spans("concepts", 80, 84)
    with raises(FormatError, found="concept id 4294967295, expected ids below 3"):
        spans.decode()
    with raises(FormatError, found="concept id 4294967295", expected="ids below 3"):
        spans.values  # noqa: B018
