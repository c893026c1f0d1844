"""Losses of a real GPTModel on our batches, beside the same documents by themselves: none may see another one."""

from itertools import pairwise

import pytest
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random
from megatron.core.transformer.transformer_config import TransformerConfig

from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.stock import data_of, dataset_config

LENGTH = 48
KINDS = {"windows": {}, "packs": {"packing": {"bins": 8}}}


@pytest.fixture
def model(one_process, monkeypatch):
    """With weights by which a token that is seen changes the loss."""
    monkeypatch.setattr(random, "_CUDA_RNG_STATE_TRACKER", None)
    monkeypatch.setattr(random, "_CUDA_RNG_STATE_TRACKER_INITIALIZED", False)
    random.initialize_rng_tracker(inference_rng_tracker=True)  # no dropout, no CUDA
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
        attention_dropout=0.0, init_method_std=0.4, masked_softmax_fusion=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return GPTModel(config, get_gpt_layer_local_spec(), 256, 2 * LENGTH)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_a_sample_are_as_alone(kind, tmp_path, model):
    config = dataset_config(LENGTH, create_attention_mask=False)  # with --dataloader-inter-document-masking,
    config.inter_document_masking = True  # a field from core 0.19 on
    data = data_of(write_config(write_datasets(tmp_path) / "data.yaml", tracks={}, **KINDS[kind]), config)
    batch = data.get_batch(data.iterator(data.datasets()[0]))
    tokens, places, labels = batch["tokens"], batch["position_ids"], batch["labels"]
    # Megatron's kernels get cu_seqlens alone; with masks, test_two_ranks.py compares losses.
    within = torch.searchsorted(batch["cu_seqlens"].long(), torch.arange(tokens.shape[1]), right=True)
    apart = (within[:, None] != within) | torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()

    def losses(rows, mask):
        with torch.no_grad():
            return model(tokens[rows], places[rows], mask, labels=labels[rows])

    found = losses(slice(None), apart[None, None])
    count = 0
    for row in range(len(tokens)):
        edges = [*(places[row] == 0).nonzero().flatten().tolist(), tokens.shape[1]]
        count += len(edges) - 1
        for first, last in pairwise(edges):
            size = last - first
            causal = torch.ones(size, size).triu(1).bool()[None, None]
            alone = losses((slice(row, row + 1), slice(first, last)), causal)
            torch.testing.assert_close(found[row : row + 1, first:last], alone, rtol=1e-4, atol=1e-4)
    assert count > 2 * len(tokens)
    seen = losses(slice(None), torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()[None, None])
    assert (seen - found).abs().max() > 0.1  # what a leak does to these weights
