"""A configuration for tests of one trainer."""

import pytest

from tests.corpora.for_megatron import write_config, write_datasets


@pytest.fixture
def config(tmp_path):
    return str(write_config(write_datasets(tmp_path) / "run.yaml", seq_len=16, outputs={"sample_index": True}))
