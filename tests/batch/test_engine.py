"""What a reader is after an interrupt, and what it says of a member that has left."""

import threading

import numpy as np
import pytest

from conceptloader.errors import ConfigError
from conceptloader.kernels.kernel import Kernel
from conceptloader.loader.batch.reader import BatchReader
from tests.batch.cases import random_case, read
from tests.batch.compare import assert_same


@pytest.mark.parametrize("before", [0, 8])
def test_what_an_interrupt_leaves_is_not_gone_on_with(tmp_path, monkeypatch, before):
    """Ctrl-C while a batch size is prepared for, or compiled for; meanwhile it can be asked what is waited for."""
    case = random_case(tmp_path, 1000)
    picks = np.zeros(8, np.int64), np.arange(8, dtype=np.uint64) % case.views[0].member.windows
    reader, samples = BatchReader(None, case.views, case.layout, dp_rank=4), np.arange(70, 78, dtype=np.uint64)
    if before:
        reader.read(samples, picked=picks)

    def interrupted(*_):
        waits.append(reader.where(threading.get_ident()))
        raise KeyboardInterrupt

    waits = []
    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "bind", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.read(samples[:2], picked=tuple(pick[:2] for pick in picks))
    assert waits[0].endswith("sample 70, dp_rank 4")
    for size in (2, 8):
        picked = tuple(pick[:size] for pick in picks)
        wanted = BatchReader(None, case.views, case.layout).read(samples[:size], picked=picked)
        assert_same(reader.read(samples[:size], picked=picked), wanted)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_of_what_was_in_the_memory_is_in_a_batch(tmp_path, seed):
    """Such as an earlier batch, with what a trainer wrote into it."""
    case = random_case(tmp_path, seed)
    picked = case.datasets, case.windows
    reader = BatchReader(None, case.views, case.layout)
    found, wanted = (reader.read(case.samples, lambda n, b=b: np.full(n, b, np.uint8), picked) for b in (0xA5, 0))
    assert_same(found, wanted)


def test_a_member_that_has_left_is_named(tmp_path):
    case = random_case(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"^sample 5: .*member 0 of the order"):
        read(BatchReader(None, [None, case.views[1]], case.layout), 0, first=5)
