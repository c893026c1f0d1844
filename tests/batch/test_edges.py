"""What random mutants of the batch reader survived without: nothing at all, too much, and values at the edge."""

from itertools import pairwise

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, ReadError
from conceptloader.loader.batch.open import batch_layout
from conceptloader.loader.batch.workspace import BUFFER_BYTES
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.small import written
from tests.corruption.mutations import with_matching_manifest
from tests.raises import raises


def write(path, documents, **options):
    """Documents of so many tokens, with spans of a track."""
    given = [(range(1, tokens + 1), {"t": spans}) for tokens, spans in documents]
    return str(written(path, given, tracks={"t": {"encoding": "spans"}}, **options))


def batch(path, samples=2, **config):
    given = {"order": "sequential", "datasets": {"a": {"path": path}}, **config}
    with cl.make_dataloader(given, micro_batch_size=samples) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_records_of_more_than_one_read(tmp_path, layout):
    """Beside others that lie before and behind them."""
    counts = [3, BUFFER_BYTES // 4, 1, 2, 3 * BUFFER_BYTES // 4 + 5, BUFFER_BYTES // 4 - 1, 7]
    records = [list(range(10 * k, 10 * k + n)) for k, n in enumerate(counts)]
    path = write(tmp_path / "ds", [(2 * len(counts) + 1, [(2 * k, 2 * k + 1, ids) for k, ids in enumerate(records)])])
    found = batch(path, 1, seq_len=2 * len(counts), tracks={"t": {"layout": layout}})
    if layout == "ragged":
        values, offsets = found["t_values"], found["t_offsets"].tolist()
        assert [values[a:b].tolist() for a, b in pairwise(offsets)] == records
    else:
        assert [ids[:n].tolist() for ids, n in zip(found["t_ids"][0], counts, strict=True)] == records
        assert (found["t_ids"] >= 0).sum() == sum(counts)


def test_windows_over_more_blocks_than_are_read_at_a_time(tmp_path):
    size, windows = BUFFER_BYTES // 8 + 1000, 9
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions(block_tokens=1))
    with build.shard(0) as writer:  # documents of one token
        numbers = np.arange(windows * size + 1)
        writer.add_documents(numbers, np.append(numbers, len(numbers)), {}, [""] * len(numbers))
    cl.writing.finalize(tmp_path / "ds")
    found = batch(str(tmp_path / "ds"), windows, seq_len=size, outputs={"document_ids": True})
    assert found["document_ids"].flatten().tolist() == list(range(windows * size))


def test_a_block_table_that_names_too_late_an_item(tmp_path):
    """More is read than has to be, up to the end of the shard, and what is found is right."""
    path = tmp_path / "ds"
    write(path, [(3, []), (9, []), (2, [])], block_tokens=4)
    files, name = {file.name: file.read_bytes() for file in path.iterdir()}, "00000.documents.bin"
    at = 8 * (4 + 2)  # behind 3 documents: the third block's entry
    wrong = files[name][:at] + b"\xff" * 8 + files[name][at + 8 :]
    for file, data in with_matching_manifest(files, {name: wrong}).items():
        (path / file).write_bytes(data)
    found = batch(str(path), 1, seq_len=5, outputs={"document_ids": True})
    assert found["document_ids"].tolist() == [[0, 0, 0, 1, 1]]


def test_how_large_a_track_of_a_sample_may_be(tmp_path):
    path = write(tmp_path / "ds", [(9, [(0, 4, [1, 2])])])

    def layout(max_spans, max_concepts):
        options = {"max_spans": max_spans, "max_concepts": max_concepts, "overflow": "truncate"}
        config = {"seq_len": 4, "datasets": {"a": {"path": path}}, "tracks": {"t": options}}
        batch_layout(cl.open_blend(config))

    layout(1 << 13, 1 << 14)  # 8 bytes each: 1 GiB
    with raises(ConfigError, found="bytes a sample"):
        layout(1 << 13, (1 << 14) + 1)
    (tmp_path / "ds" / "00000.t.data").unlink()
    layout(1 << 8, 1 << 9)  # 1 MiB: files are looked at when they are read
    with raises(ReadError, "t.data"):
        layout(1 << 8, (1 << 9) + 1)


def test_no_loss_on_eos_needs_a_tokenizer_that_has_one(tmp_path):
    def config(eos):
        tokenizer = cl.writing.Tokenizer(name="synthetic", vocab_size=1000, eos_id=eos)
        path = write_dataset(tmp_path / str(eos), random_documents(5), tokenizer=tokenizer)
        return {"seq_len": 4, "datasets": {"a": {"path": path}}, "outputs": {"loss_on_eos": False}}

    cl.batches(config(0), micro_batch_size=1).close()
    with raises(ConfigError, "outputs.loss_on_eos", "dataset a has no eos token"):
        cl.batches(config(None), micro_batch_size=1)
