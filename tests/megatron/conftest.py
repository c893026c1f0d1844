import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch.distributed as dist

from tests.corpora.for_megatron import EOD, write_config, write_datasets
from tests.megatron.pretraining import CHECKOUTS, Pretrain


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with datasets."""
    return write_datasets(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def config(data):
    return write_config(data / "data.yaml")


@pytest.fixture(params=CHECKOUTS or [Path()], ids=lambda path: path.name)
def pretrain(request, tmp_path):
    return Pretrain(request.param, tmp_path)


@pytest.fixture
def one_process():
    """Process groups of this process alone, as Megatron wants them."""
    from megatron.core import parallel_state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.fixture
def set_args(monkeypatch):
    """Says what megatron.training.get_args returns; its tokenizer's end of a document is that of the corpora."""
    from tests.megatron.stock import Tokenizer

    training = ModuleType("megatron.training")
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    monkeypatch.setattr(Tokenizer, "eod", EOD)

    def set_args(args):
        training.get_args = lambda: args
        return args

    return set_args
