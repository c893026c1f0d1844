"""The compiled reader against the plain one."""

import pickle

import pytest

from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.plain import ReferenceReader
from tests.batch.cases import random_case
from tests.batch.compare import assert_same


@pytest.mark.parametrize("seed", range(60))
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
