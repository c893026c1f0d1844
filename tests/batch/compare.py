"""Equality of batches, names and types included, in numpy or torch."""

import numpy as np


def assert_same(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        if name == "max_seqlen" or name.endswith("_records"):
            assert found[name] == value
        else:
            np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(value), name, strict=True)
