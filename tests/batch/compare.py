"""Equality of batches, names and types included."""

import numpy as np


def assert_same(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        if name == "max_seqlen" or name.endswith("_records"):
            assert found[name] == value
        else:
            assert found[name].dtype == value.dtype, name
            np.testing.assert_array_equal(found[name], value, err_msg=name)
