"""Descriptors: bounded, never closed in use, checked; and what a read costs."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import ConceptOptions, Outputs
from conceptloader.errors import FormatError, ReadError
from conceptloader.storage.handles import HANDLES, Handles, OpenTable
from tests.batch import cases
from tests.batch.cases import make_view
from tests.corpora.known import Recipe, build, join

SEQ_LEN = 24


def whole_view(dataset, seq_len=SEQ_LEN):
    return make_view("x", dataset, 0, 0, (dataset.num_tokens - 1) // seq_len, seq_len)


def make_reader(dataset, outputs=None, tracks=(), handles=HANDLES):
    view = whole_view(dataset)
    layout = decide_layout([view], SEQ_LEN, outputs or Outputs(), {track: ConceptOptions() for track in tracks})
    return BatchReader(None, [view], layout, dp_rank=3, handles=handles), BatchReader(None, [view], layout)


read = partial(cases.read, first=100)


@pytest.fixture(scope="module")
def forty(tmp_path_factory):
    """Forty shards of few windows each, 5 files a shard."""
    path = tmp_path_factory.mktemp("forty") / "many"
    build(path, Recipe(shards=[3] * 40, longest=50), np.random.default_rng(1))
    return path


@pytest.fixture
def many(forty, tmp_path):
    return cl.open_dataset(shutil.copytree(forty, tmp_path / "many"))


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_threads_read_the_right_bytes_while_files_are_closed_under_them(many):
    handles = Handles(capacity=10)
    reader, plain = make_reader(many, Outputs(document_ids=True), ["concepts"], handles)
    count = whole_view(many).count
    batches = np.random.default_rng(2).integers(0, count, (200, 4))
    wanted = {window: read(plain, window)["input_ids"][0] for window in range(count)}
    most = []

    def check(batch, reader):
        found = read(reader, *batch)
        most.append(handles.count)
        for row, window in enumerate(batch.tolist()):
            np.testing.assert_array_equal(found["input_ids"][row], wanted[window])

    gc.collect()  # files of datasets of other tests
    before = open_descriptors()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, batches, [reader] * len(batches)))
    assert max(most) <= 2 * 10 + 8 * 2 * 5  # and what 8 threads open at the same time
    assert open_descriptors() - before == handles.count
    del reader
    gc.collect()
    assert handles.count == 0  # not even those that left the table
    assert open_descriptors() == before


def test_at_the_limit_of_the_system_all_idle_files_are_closed():
    handles, counts = Handles(capacity=100), []
    table = OpenTable({}, handles)
    with handles.lock:
        for key in range(3):
            table.put(key, os.open(os.devnull, os.O_RDONLY))

    def opener():
        counts.append(handles.count)
        if len(counts) == 1:
            raise ReadError("ds", "too many open files", errno=errno.EMFILE)
        return 7

    assert handles.open(opener) == 7
    assert counts == [3, 0]


def test_least_recently_used_shards_are_closed_first(many):
    handles = Handles(capacity=16)
    reader, _ = make_reader(many, handles=handles)
    shards = [many.manifest.starts()[k] for k in range(20)]
    windows = [int(start) // SEQ_LEN + 1 for start in shards]
    for window in windows[:15]:
        read(reader, window, windows[0])  # the first one is used again and again
    names = [os.path.basename(os.readlink(link.path)) for link in os.scandir("/proc/self/fd") if link.is_symlink()]
    kept = {name for name in names if name.endswith(".stream.bin")}
    assert {"00000.stream.bin", "00001.stream.bin"} & kept
    assert len(kept) < 20


def test_two_thousand_shards_with_256_descriptors(tmp_path):
    rng = np.random.default_rng(4)
    truth = build(tmp_path / "part", Recipe(shards=[2] * 20, longest=40), rng)
    join(tmp_path / "all", [tmp_path / "part"] * 100, [truth] * 100)
    script = textwrap.dedent(f"""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 256))
        import numpy as np, conceptloader as cl
        dataset = {{"path": {str(tmp_path / "all")!r}}}
        config = {{"seed": 1, "seq_len": 16, "datasets": {{"a": dataset}}, "outputs": {{"cu_seqlens": True}}}}
        config["tracks"] = {{"concepts": {{}}}}
        seen = set()
        with cl.make_dataloader(config, micro_batch_size=64) as loader:
            for k, batch in enumerate(loader):
                seen.add(len(os.listdir("/proc/self/fd")))
                if k == 30:
                    break
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
        assert max(seen) < 256, seen
    """)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=110)


def test_a_file_that_is_cut_off_under_the_reader_is_named(many, tmp_path):
    reader, _ = make_reader(many)
    read(reader, 0)
    path = tmp_path / "many" / "00000.stream.bin"
    os.truncate(path, 3)
    with pytest.raises(ReadError, match=rf"50 bytes at offset 0 of {path}, sample 100, dp_rank 3: the file ends there"):
        read(reader, 0)


def test_a_file_of_other_content_is_refused_when_it_is_opened_again(many, tmp_path):
    reader, _ = make_reader(many, handles=Handles(1))
    other = int(many.manifest.starts()[9]) // SEQ_LEN + 1  # what is read there closes the first file
    wanted = read(reader, 0)["input_ids"].tolist()
    path = tmp_path / "many" / "00000.stream.bin"
    shutil.copy2(path, tmp_path / "copy")  # equal in size, time and content: as of a file system mounted again
    os.replace(tmp_path / "copy", path)
    assert read(reader, 0)["input_ids"].tolist() == wanted  # the old one is still open
    read(reader, other)
    assert read(reader, 0)["input_ids"].tolist() == wanted
    shutil.copy2(path, tmp_path / "copy")
    (tmp_path / "copy").write_bytes(bytes(path.stat().st_size))
    shutil.copystat(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    read(reader, other)
    with pytest.raises(FormatError, match=r"found sample checksum \w+, expected \w+ as the manifest says"):
        read(reader, 0)
