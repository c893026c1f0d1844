"""An order in lanes over an object store: the same batches as from a disk, and a request for a block of windows."""

import itertools
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.open import batch_layout, open_reader
from conceptloader.storage import objects
from conceptloader.trace.select.views import Ask, select
from tests.batch.compare import assert_same, plain_reader
from tests.remote.conftest import Server

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


def blend(path: Path | str, lanes: int = 8, **changes: Any) -> cl.Blend:
    config = {
        "seq_len": SEQ_LEN,
        "order": {"lanes": lanes, "windows": 64, "open": 4},
        "datasets": {"a": {"path": path}},
    }
    return cl.open_blend({**config, **changes})


def reader(path: Path | str, **changes: Any) -> Any:
    return open_reader(blend(path, **changes))


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
    requests(reader(url), plain_reader(blend(str(path))), 100, monkeypatch)
    monkeypatch.undo()
    assert requests(reader(url, order="shuffled"), reader(str(path), order="shuffled"), 100, monkeypatch) > 0.7


def test_with_memory_for_one_block_nothing_is_wrong_but_the_number_of_requests(
    corpus: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = corpus
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_MEMORY_BYTES", "3000")
    assert 0.1 < requests(reader(url), reader(str(path)), 50, monkeypatch) <= 1.1


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of the same 6,200 short documents in shards of unequal length, as a stream and as documents, and a view
    of four fifths of each."""
    folder = tmp_path_factory.mktemp("short")
    for mode in ("stream-with-metadata", "document"):
        rng = np.random.default_rng(1)
        options = cl.BuildOptions(mode=mode, tracks={"d": cl.TrackOptions(encoding="dense")})
        build = cl.create_build(folder / mode, options, plan=[None] * 3)
        for shard, documents in enumerate((2001, 1300, 2899)):
            with build.shard(shard) as writer:
                for number in range(documents):
                    tokens = rng.integers(0, 60_000, int(rng.integers(0 if mode == "document" else 1, 31)))
                    spans = [(0, len(tokens) // 2, [number])] if number % 3 == 0 and len(tokens) > 1 else []
                    writer.add_document(tokens, spans={"d": spans})
        cl.finalize(folder / mode)
        select(folder / mode, folder / f"{mode}.view", Ask(where="share < 0.8"))
    return folder


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stream-with-metadata", {"concepts": {"d": {}}}),
        ("stream-with-metadata", {"packing": {}}),
        ("stream-with-metadata", {"packing": {"bins": 256, "overflow": "crop"}, "concepts": {"d": {}}}),
        ("document", {}),
        ("stream-with-metadata.view", {}),
        ("stream-with-metadata.view", {"packing": {}}),
        ("document.view", {"concepts": {"d": {}}}),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value) or "plain",
)
def test_all_that_a_sample_can_be_is_read_by_blocks(
    short: Path, server: Server, name: str, changes: dict[str, Any]
) -> None:
    """Of a dense track, one token more on each side is read; tables of documents are counted, too."""
    url = f"{server.upload(short, uuid.uuid4().hex)}/{name}"
    unchecked = {"check_files": False}  # a check is some requests an object, once
    near, far = (blend(path, loader=unchecked, **changes) for path in (str(short / name), url))
    mine, theirs = (CompiledReader(one.order, one.views, batch_layout(one)) for one in (far, near))
    part, count = cl.Partition(micro_batch_size=4, dp_size=2), len(near.views[0] or ()) // 8
    samples = part.samples(0, 8 * (count - count % 16), 1).reshape(-1, 64)  # 16 batches of it at once
    server.plan()
    for batch in samples:
        assert_same(mine.read(batch), theirs.read(batch))
    assert server.count() <= 0.02 * samples.size


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
