"""What a pass over a batch lacks is got together, and the pass repeated; what an interrupt leaves."""

import dataclasses
import threading

import numpy as np
import pytest

from conceptloader.config import Outputs
from conceptloader.errors import FormatError, ReadError
from conceptloader.kernels.kernel import Kernel
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.loader.batch.reader import MOST_PASSES, BatchReader
from conceptloader.storage.handles import Handles
from conceptloader.testing import random_documents, write_dataset
from tests.batch.cases import make_view, read, small_view
from tests.batch.compare import assert_same

SEQ_LEN = 24
NO_ORDER = None


def test_packs_read_documents_also_after_windows_of_the_same_shards(tmp_path):
    """As in a run that goes on with another sequence length and packs: what it read before is still a member."""
    write_dataset(tmp_path / "a", random_documents(60, seed=2), shards=3)
    packs = dataclasses.replace(make_view(tmp_path / "a", SEQ_LEN, packing={}), tracks=())
    before = dataclasses.replace(make_view(tmp_path / "a", SEQ_LEN), dataset=packs.dataset, tracks=())
    samples = np.arange(20, dtype=np.uint64)
    for views in ([before, packs], [packs, before]):
        layout = decide_layout(views, SEQ_LEN, Outputs(), {})
        assert not layout.outputs.needs_documents
        for member in (0, 1):
            picked = np.full(20, member), samples
            found = BatchReader(NO_ORDER, views, layout).read(samples, picked=picked)
            wanted = BatchReader(NO_ORDER, [views[member]], layout).read(samples, picked=(np.zeros(20), samples))
            assert_same(found, wanted)


def test_what_stays_away_is_named(tmp_path, monkeypatch):
    """Not asked for for ever."""
    view, layout = small_view(tmp_path / "a", SEQ_LEN)
    reader = BatchReader(NO_ORDER, [view], layout, dp_rank=2)
    monkeypatch.setattr(OpenFiles, "open", lambda files, row: None)
    match = rf"sample 0, dp_rank 2: .*0.stream.bin: bytes \[0, \d+\) are still not at hand after {MOST_PASSES} passes"
    with pytest.raises(ReadError, match=match):
        read(reader, *range(view.count))


def test_threads_that_close_each_others_files_take_turns(tmp_path, monkeypatch):
    """Else each might close what another one has opened before that reads it."""
    (view, layout), handles = small_view(tmp_path / "a", SEQ_LEN), Handles(1000)
    reader = BatchReader(NO_ORDER, [view], layout, handles=handles)
    get = reader._get

    def close_all():
        if handles.lock.acquire(blocking=False):
            for row in range(3):
                reader._files.close(row)
            handles.lock.release()

    def got(work):
        get(work)
        other = threading.Thread(target=close_all)
        other.start()
        other.join()

    monkeypatch.setattr(reader, "_get", got)
    windows = range(view.count)
    assert_same(read(reader, *windows), read(BatchReader(NO_ORDER, [view], layout), *windows))


def test_of_two_damages_the_first_one_is_named(tmp_path):
    """Also where the file of its sample is opened after the other one was found."""
    view, layout = small_view(tmp_path / "a", SEQ_LEN, 4)
    reader = BatchReader(NO_ORDER, [view], layout)
    read(reader, view.count - 1)
    for shard in (0, 3):
        file = tmp_path / "a" / f"0000{shard}.stream.bin"
        content = np.full(file.stat().st_size, 255, np.uint8).tobytes()
        with open(file, "r+b") as opened:  # in place, so that the last one is seen through what is open
            opened.write(content)
    with pytest.raises(FormatError, match=r"^sample 0: .*00000\.stream\.bin"):
        read(reader, *range(view.count))


@pytest.mark.parametrize("before", [0, 8])
def test_what_an_interrupt_leaves_is_not_gone_on_with(tmp_path, monkeypatch, before):
    """Ctrl-C while a batch size is prepared for, or compiled for; meanwhile it can be asked what is waited for."""
    view, layout = small_view(tmp_path / "ds", 16)
    reader = BatchReader(None, [view], layout, dp_rank=4)
    if before:
        read(reader, *range(8))

    def interrupted(*_):
        waits.append(reader.where(threading.get_ident()))
        raise KeyboardInterrupt

    waits = []
    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "bind", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(reader, 0, 1, first=70)
    assert waits[0].endswith("sample 70, dp_rank 4")
    for size in (2, 8):
        assert_same(read(reader, *range(size)), read(BatchReader(None, [view], layout), *range(size)))
