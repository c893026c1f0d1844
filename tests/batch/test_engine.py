"""The compiled reader against the plain one."""

import pickle
import threading

import numpy as np
import pytest

from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.plain import ReferenceReader
from conceptloader.errors import ConfigError
from conceptloader.kernels.kernel import Kernel
from tests.batch.cases import random_case
from tests.batch.compare import assert_same


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_plain_reader(tmp_path, seed):
    case = random_case(tmp_path, 1000 + seed)
    picked = case.datasets, case.windows
    wanted = ReferenceReader(None, case.views, case.layout).read(case.samples, picked=picked)
    reader = CompiledReader(None, case.views, case.layout)
    for _ in range(2):  # the second time in used memory, with open files
        batch = reader.read(case.samples, picked=picked)
        assert_same(batch, wanted)
        for name in batch.keys() - {"max_seqlen"}:
            batch[name][...] = seed  # as trainers may
        del batch
    assert_same(pickle.loads(pickle.dumps(reader)).read(case.samples, picked=picked), wanted)


@pytest.mark.parametrize("before", [0, 8])
def test_what_an_interrupt_leaves_is_not_gone_on_with(tmp_path, monkeypatch, before):
    """Ctrl-C while a batch size is prepared for, or compiled for; meanwhile it can be asked what is waited for."""
    case = random_case(tmp_path, 1000)
    picks = np.zeros(8, np.int64), np.arange(8, dtype=np.uint64) % case.views[0].member.windows
    reader, samples = CompiledReader(None, case.views, case.layout), np.arange(70, 78, dtype=np.uint64)
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
    assert "sample 70, dp_rank 0" in waits[0]
    for size in (2, 8):
        picked = tuple(pick[:size] for pick in picks)
        wanted = ReferenceReader(None, case.views, case.layout).read(samples[:size], picked=picked)
        assert_same(reader.read(samples[:size], picked=picked), wanted)


def test_a_member_that_has_left_is_named(tmp_path):
    case = random_case(tmp_path, 1)
    reader = ReferenceReader(None, [None, case.views[1]], case.layout)
    with pytest.raises(ConfigError, match="member 0 of the order"):
        reader.read(np.array([5], np.uint64), picked=(np.array([0]), np.array([0], np.uint64)))
