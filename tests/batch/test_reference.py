"""The plain assembly against an oracle that knows what was put into the datasets."""

import numpy as np
import pytest

from conceptloader.batch.plain import ReferenceReader
from conceptloader.errors import ConfigError
from tests.batch.cases import random_case
from tests.batch.compare import assert_same
from tests.batch.oracle import expected


@pytest.mark.parametrize("seed", range(40))
def test_batches_hold_what_the_datasets_were_made_of(tmp_path, seed):
    case = random_case(tmp_path, seed)
    reader = ReferenceReader(None, case.views, case.layout)
    found = reader.read(case.samples, picked=(case.datasets, case.windows))
    assert_same(found, expected(case.layout, case.views, case.truths, case.samples.tolist(), case.picks))
    assert found.keys() == case.layout.names()


def test_a_member_that_has_left_is_named(tmp_path):
    case = random_case(tmp_path, 1)
    reader = ReferenceReader(None, [None, case.views[1]], case.layout)
    with pytest.raises(ConfigError, match="member 0 of the order"):
        reader.read(np.array([5], np.uint64), picked=(np.array([0]), np.array([0], np.uint64)))
