"""--split: the documents of each part are those of Megatron's own builder, and a run cut otherwise is told so."""

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import share_of
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.integrations.megatron_lm.options import load_configs
from tests.corpora.token_files import EOD, write_megatron
from tests.megatron.stock import data_of, dataset_config
from tests.raises import raises

LENGTH = 8
DATA = {"datasets": {"a": {"path": "a"}}}


class Counted:
    """A dataset class for Megatron's builder: keeps the documents that each split is given."""

    @staticmethod
    def build_low_level_dataset(path, config):
        return path

    @staticmethod
    def numel_low_level_dataset(low):
        return low

    def __init__(self, low, path, indices, *rest):
        self.documents = (int(indices[0]), int(indices[-1]) + 1) if len(indices) else (0, 0)


def of_megatron(split, documents):
    """[first, stop) of the documents of each split; (0, 0) for none."""
    config = dataset_config(LENGTH, blend=(["x"], None), split=split)
    builder = BlendedMegatronDatasetBuilder(Counted, [1, 1, 1], lambda: True, config)
    built = builder._build_megatron_dataset_splits(documents, config.split_matrix, [1, 1, 1], False)
    return [(0, 0) if one is None else one.documents for one in built]


numbers = st.one_of(st.integers(0, 1000).map(str), st.floats(0, 100).map(lambda x: f"{x:.6f}"))
splits = st.lists(numbers, min_size=1, max_size=3).filter(lambda words: sum(map(float, words)) > 0)


@settings(max_examples=200, deadline=None)
@example(words=["60", "30", "10"], documents=99_999)  # adds up to 0.9999999999999999
@example(words=["99", "1"], documents=50)  # a half is rounded to an even number
@given(words=splits, documents=st.integers(1, 20_000))
def test_documents_of_each_part_are_megatrons(words, documents):
    check_parts(",".join(words), documents)


def check_parts(split, documents):
    expected = of_megatron(split, documents)
    if expected[0] == (0, 0) and float(split.split(",")[0]) == 0:
        with raises(ConfigError, found="nothing to train on"):
            load_configs(DATA, None, None, split, LENGTH, 1)
        return
    configs = load_configs(DATA, None, None, split, LENGTH, 1)
    for config, part in zip(configs, expected, strict=True):
        if config is None:
            assert part == (0, 0)
            continue
        first, stop = share_of(documents, *(config.split_documents or (0, 1)))
        assert (first, stop) == part or (first == stop and part == (0, 0))


@pytest.mark.usefixtures("one_process")
def test_what_has_no_documents_to_count(tmp_path):
    """Files without a table of documents, and an index whose documents are not what Megatron counts."""
    np.save(tmp_path / "flat.npy", np.arange(500, dtype=np.uint16))
    adopt([str(tmp_path / "flat.npy")], tmp_path / "flat")
    path = tmp_path / "data.yaml"
    path.write_text(yaml.safe_dump({"datasets": {"flat": {"path": "flat"}}}))
    data_of(path, dataset_config(LENGTH), split="1,0,0")
    with raises(ConfigError, "datasets.flat: --split", "no table of documents"):
        data_of(path, dataset_config(LENGTH), split="90,10,0")
    prefix = write_megatron(tmp_path / "b", [[[1, 2, 3], [4, 5, 6, EOD]]] * 20)
    blend = {"blend": ([prefix], None), "path_to_cache": str(tmp_path / "cache")}
    data_of(None, dataset_config(LENGTH, split="1,0,0", **blend), [5, 0, 0])
    with pytest.raises(ConfigError, match=r"--split 90,10,0: found 40 sequences in 20 documents .*b\.idx"):
        data_of(None, dataset_config(LENGTH, split="90,10,0", **blend), [5, 5, 0])
