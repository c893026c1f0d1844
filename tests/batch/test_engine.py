"""What a reader is after an interrupt, and what it says of a member that has left."""

import threading

import pytest

from conceptloader.errors import ConfigError
from conceptloader.kernels.kernel import Kernel
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import read, small_view
from tests.batch.compare import assert_same


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


def test_a_member_that_has_left_is_named(tmp_path):
    view, layout = small_view(tmp_path / "ds", 16)
    with pytest.raises(ConfigError, match=r"^sample 5: .*member 0 of the order"):
        read(BatchReader(None, [None, view], layout), 0, first=5)
