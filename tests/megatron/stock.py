"""Corpora in Megatron's own .bin/.idx files, and what the installed megatron-core makes of them."""

from argparse import Namespace
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import yaml
from megatron.core import parallel_state
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.integrations.megatron_lm.data import MegatronData
from tests.corpora.token_files import EOD, random_corpus


class Tokenizer:
    """As much of a tokenizer as a GPTDatasetConfig looks at."""

    vocab_size = 100
    eod = EOD

    def __init__(self, pad=None):
        self.unique_identifiers = {"class": "Tokenizer", "pad": pad}
        self.special_tokens_dict = {"eod_token": EOD} | ({} if pad is None else {"pad_token": pad})
        if pad is not None:
            self.pad = pad


def dataset_config(seq_length, pad=None, **options):
    """A GPTDatasetConfig with plain defaults."""
    flags = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    defaults = {
        "random_seed": 3,
        "sequence_length": seq_length,
        "tokenizer": Tokenizer(pad),
        "mid_level_dataset_surplus": 0.5,
    }
    return GPTDatasetConfig(**{**defaults, **flags, **options})


ARGUMENTS = """
global_batch_size: 8
micro_batch_size: 2
rampup_batch_size:
seq_length: 16
iteration: 0
decrease_batch_size_if_needed: false
phase_transition_iterations:
consumed_train_samples: 0
train_iters: 8
rank: 0
world_size: 1
num_workers: 0
dataloader_type: single
save:
load:
split:
transformer_impl: local
masked_softmax_fusion: true
fp16: false
bf16: false
"""


def arguments(**changes):
    """Megatron's, as far as a run looks at them."""
    return Namespace(**{**yaml.safe_load(ARGUMENTS), **changes})


def builder(config, sizes=(64, 0, 0)):
    """As much of a BlendedMegatronDatasetBuilder as a run looks at."""
    return SimpleNamespace(cls=GPTDataset, config=config, sizes=[*sizes], is_built_on_rank=lambda: True)


def build_stock(config, sizes):
    """Train, valid and test of Megatron's own builder."""
    return BlendedMegatronDatasetBuilder(GPTDataset, list(sizes), lambda: True, config).build()


def adopted(folder, names, **config):
    """Corpora in Megatron's files, adopted in place, and a YAML of them."""
    prefixes = [random_corpus(folder / f"{name}_text", seed) for seed, name in enumerate(names)]
    for name, prefix in zip(names, prefixes, strict=True):
        adopt([prefix], folder / name)
    path = folder / "data.yaml"
    datasets = {name: {"path": name} for name in names}
    path.write_text(yaml.safe_dump({"datasets": datasets, **config}))
    return path, prefixes


def data_of(config, given, sizes=(64, 0, 0), **more):
    """MegatronData with micro batches of two samples."""
    return MegatronData(config, given, sizes, **{"micro_batch_size": 2, **more})


def in_order(stock, length):
    """A GPTDataset that returns window w of the token stream as sample w."""
    lengths = stock.dataset.sequence_lengths
    stock.document_index = np.arange(len(lengths), dtype=np.int32)
    stock.sample_index = helpers.build_sample_idx(
        np.array(lengths), stock.document_index, length, 1, int(lengths.sum()), True, True
    )
    stock.shuffle_index = np.arange(len(stock.sample_index) - 1)
    stock.masks_and_position_ids_are_cacheable = False  # they would be those of the first sample
    return stock


def assert_equal_samples(found, stock, ignore=()):
    """Same keys, dtypes, shapes and values."""
    assert set(found) - set(ignore) == set(stock) - set(ignore)
    for key in set(stock) - set(ignore):
        a, b = torch.as_tensor(found[key]), torch.as_tensor(stock[key])
        assert (a.dtype, a.shape) == (b.dtype, b.shape), key
        assert torch.equal(a, b), SimpleNamespace(key=key, found=a, stock=b)


def run_checks(folder, *checks):
    """Each in a folder of its own. Prints "equal", or "absent" without --dataloader-inter-document-masking."""
    if "inter_document_masking" not in {field.name for field in fields(GPTDatasetConfig)}:
        print("absent")
        return
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    for check in checks:
        (folder / check.__name__).mkdir()
        check(folder / check.__name__)
    print("equal")
