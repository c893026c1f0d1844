"""A sample made from tokens and document ends is the one that GPTDataset returns."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

from conceptloader.integrations.megatron_lm.dataset import SampleRules, make_batch
from tests.corpora.token_files import EOD
from tests.megatron.stock import assert_equal_samples

FLAGS = [dict(zip(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), bits, strict=True))
         for bits in itertools.product((False, True), repeat=3)]  # fmt: skip


def sample_of(window, rules):
    """A sample whose documents end at EOD."""
    ends = window[:-1] == EOD
    loss_mask = np.where(ends & rules.eod_mask_loss, np.float32(0), np.float32(1))
    batch = make_batch(window[None, :-1], window[None, 1:], loss_mask[None], np.flatnonzero(ends) + 1, rules)
    return {name: tensor[0] for name, tensor in batch.items()}


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from([1, 2, 3, EOD]), min_size=2, max_size=33),
    flags=st.sampled_from(FLAGS),
    attention_mask=st.booleans(),
)
def test_masks_of_any_tokens(text, flags, attention_mask):
    window = np.array(text, np.int64)
    rules = SampleRules(seq_length=len(text) - 1, create_attention_mask=attention_mask, **flags)
    found = sample_of(window, rules)
    tokens = torch.from_numpy(window[:-1].copy())
    mask, loss_mask, positions = _get_ltor_masks_and_position_ids(tokens, EOD, *flags.values(), attention_mask)
    stock = {
        "tokens": tokens,
        "labels": torch.from_numpy(window[1:]),
        "loss_mask": loss_mask,
        "position_ids": positions,
    }
    assert_equal_samples(found, stock | ({"attention_mask": mask} if attention_mask else {}))
