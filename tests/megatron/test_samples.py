"""A sample made from tokens and document ends is the one that GPTDataset returns."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.gpt_dataset import GPTDataset, _get_ltor_masks_and_position_ids

from conceptloader.integrations.megatron_lm.dataset import Ints, Sample, SampleRules, make_batch
from conceptloader.integrations.megatron_lm.takeover import MappingBuilder
from tests.corpora.token_files import EOD, random_corpus
from tests.megatron.stock import assert_equal_samples, build_stock, dataset_config

FLAGS = [dict(zip(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), bits, strict=True))
         for bits in itertools.product((False, True), repeat=3)]  # fmt: skip


def sample_of(window: Ints, pieces: Ints, rules: SampleRules) -> Sample:
    """A sample whose documents end at EOD."""
    ends = window[:-1] == EOD
    loss_mask = np.where(ends & rules.eod_mask_loss, np.float32(0), np.float32(1))
    borders = pieces if rules.inter_document_masking else np.flatnonzero(ends) + 1
    batch = make_batch(window[None, :-1], window[None, 1:], loss_mask[None], borders, rules)
    return {name: tensor[0] for name, tensor in batch.items()}


def pieces_of(lengths: list[int], length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    starts = np.cumsum(lengths)[:-1]
    return starts[(starts > 0) & (starts < length)]


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from([1, 2, 3, EOD]), min_size=2, max_size=33),
    flags=st.sampled_from(FLAGS),
    attention_mask=st.booleans(),
)
def test_masks_of_any_tokens(text: list[int], flags: dict[str, bool], attention_mask: bool) -> None:
    window = np.array(text, np.int64)
    rules = SampleRules(seq_length=len(text) - 1, create_attention_mask=attention_mask, **flags)
    found = sample_of(window, np.array([], np.int64), rules)
    tokens = torch.from_numpy(window[:-1].copy())
    mask, loss_mask, positions = _get_ltor_masks_and_position_ids(tokens, EOD, *flags.values(), attention_mask)
    stock = {
        "tokens": tokens,
        "labels": torch.from_numpy(window[1:]),
        "loss_mask": loss_mask,
        "position_ids": positions,
    }
    assert_equal_samples(found, stock | ({"attention_mask": mask} if attention_mask else {}))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("pad", [None, 5])
@pytest.mark.parametrize("flags", FLAGS)
def test_every_sample_of_a_blend(tmp_path: Path, flags: dict[str, bool], pad: int | None) -> None:
    prefixes = [random_corpus(tmp_path / name, seed) for seed, name in enumerate("abc")]
    config = dataset_config(
        13, pad, blend=(prefixes, [0.5, 0.2, 0.3]), split="90,10,0", path_to_cache=str(tmp_path / "cache"), **flags
    )
    sizes = [150, 8, 0]
    stock = build_stock(config, sizes)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    mapped = MappingBuilder(GPTDataset, sizes, lambda: True, config).build()
    streams = [np.fromfile(f"{prefix}.bin", np.uint16).astype(np.int64) for prefix in prefixes]
    rules = SampleRules.of(config, pad=-1 if pad is None else pad)
    for stock_split, order in zip(stock[:2], mapped[:2], strict=True):
        for dataset in stock_split.datasets:
            # Its cached loss mask is not copied at first use, so padding in the first sample leaks into all others.
            dataset.masks_and_position_ids_are_cacheable = False
        assert len(order) == len(stock_split)
        for t in range(len(order)):
            dataset, pieces = order.sample(t)
            parts = [streams[dataset][p.start : p.stop] for p in pieces]
            window = np.concatenate(parts)
            borders = pieces_of([len(part) for part in parts], 13)
            assert_equal_samples({"dataset_id": np.int16(dataset), **sample_of(window, borders, rules)}, stock_split[t])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before
