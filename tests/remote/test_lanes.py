"""An order in lanes over an object store: the same batches as from a disk, and a request for a block of windows."""

import itertools
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.storage import objects
from tests.batch.compare import assert_same

SEQ_LEN, WINDOWS = 16, 12_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A dataset in shards of unequal length, and its URL in memory."""
    path = tmp_path_factory.mktemp("lanes") / "ds"
    build = cl.create_build(path, cl.BuildOptions(), plan=[None] * 3)
    cuts = [0, 60_007, 100_000, SEQ_LEN * WINDOWS + 1]
    for shard, (start, stop) in enumerate(itertools.pairwise(cuts)):
        with build.shard(shard) as writer:
            for first in range(start, stop, 500):
                writer.add_document(np.arange(first, min(first + 500, stop)) % 60_000)
    cl.finalize(path)
    bucket = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").put(str(path), bucket, recursive=True)
    return path, bucket


def reader(path: Path | str, lanes: int = 8, **changes: Any) -> Any:
    config = {
        "seq_len": SEQ_LEN,
        "order": {"lanes": lanes, "windows": 64, "open": 4},
        "datasets": {"a": {"path": path}},
    }
    return open_reader(cl.open_blend({**config, **changes}))


def requests(mine: Any, theirs: Any, batches: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """A window, of rank 1 of 2, when objects are known."""
    part, asked, plain = cl.Partition(micro_batch_size=4, dp_size=2), [], objects.read_range
    mine.read(part.samples(8 * batches, 8 * batches + 8, 0)[0])
    monkeypatch.setattr(objects, "read_range", lambda *a: (asked.append(a), plain(*a))[1])
    samples = part.samples(0, 8 * batches, 1)
    for batch in samples:
        assert_same(mine.read(batch), theirs.read(batch))
    return len(asked) / samples.size


def test_a_block_is_one_request_and_batches_are_those_of_a_disk(
    corpus: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = corpus
    assert requests(reader(url), reader(str(path)), 1400, monkeypatch) <= 0.02
    monkeypatch.undo()
    requests(reader(url), reader(str(path), loader={"engine": "reference"}), 100, monkeypatch)
    monkeypatch.undo()
    assert requests(reader(url, order="shuffled"), reader(str(path), order="shuffled"), 100, monkeypatch) > 0.7


def test_with_memory_for_one_block_nothing_is_wrong_but_the_number_of_requests(
    corpus: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = corpus
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_MEMORY_BYTES", "3000")
    assert 0.1 < requests(reader(url), reader(str(path)), 50, monkeypatch) <= 1.1


def test_blocks_of_other_sizes_that_begin_at_the_same_token(corpus: tuple[Path, str]) -> None:
    """Of one opened dataset with two lengths of samples, as in training and evaluation, or stages of a run."""
    path, url = corpus
    datasets = {"a": cl.open_dataset(url)}
    config: dict[str, Any] = {"order": {"lanes": 8, "windows": 64}, "datasets": {"a": {"path": url}}}
    some = np.arange(2400, dtype=np.uint64)
    for seq_len in (SEQ_LEN, 2 * SEQ_LEN):
        mine = open_reader(cl.open_blend({**config, "seq_len": seq_len}, datasets=datasets))
        theirs = open_reader(cl.open_blend({**config, "seq_len": seq_len, "datasets": {"a": {"path": str(path)}}}))
        assert_same(mine.read(some), theirs.read(some))


def test_a_loader_says_when_ranks_share_lanes(corpus: tuple[Path, str], caplog: pytest.LogCaptureFixture) -> None:
    config = {"seq_len": SEQ_LEN, "order": {"lanes": 8}, "datasets": {"a": {"path": str(corpus[0])}}}
    cl.make_dataloader(config, global_batch_size=24, micro_batch_size=4, dp_size=2, dp_rank=0)
    assert not caplog.records
    cl.make_dataloader(config, global_batch_size=24, micro_batch_size=4, dp_size=3, dp_rank=0)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "order: lanes: found 8, no multiple of" in said
    assert "may take 9 lanes" in said
