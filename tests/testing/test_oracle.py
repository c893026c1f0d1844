"""The resume oracle passes a loader that resumes exactly, and catches those that do not."""

import numpy as np
import pytest

from conceptloader.testing import Layout, check_resume

BEFORE = Layout(dp_size=2, micro_batch_size=3, global_batch_size=12)
AFTER = [
    BEFORE,
    Layout(dp_size=3, micro_batch_size=4, global_batch_size=12),
    Layout(dp_size=1, micro_batch_size=2, global_batch_size=4),
]


class Plain:
    """Sample k holds k * k. Counts what it handed out."""

    def __init__(self, layout, dp_rank):
        self.layout, self.dp_rank, self.consumed = layout, dp_rank, 0

    def __iter__(self):
        size, group = self.layout.micro_batch_size, self.layout.micro_batch_size * self.layout.dp_size
        while True:
            first = self.consumed + self.dp_rank * size
            self.consumed += group
            index = np.arange(first, first + size)
            yield {"sample_index": index, "tokens": index * index, "cu_seqlens": np.arange(size), "max_seqlen": 1}

    def state_dict(self):
        return {"consumed": self.consumed}

    def load_state_dict(self, state):
        self.consumed = state["consumed"]


def other_tokens(loader):
    for batch in Plain.__iter__(loader):
        yield {**batch, "tokens": batch["tokens"] + loader.layout.dp_size}


BROKEN = {
    "sample 24 instead of 12": {"state_dict": lambda self: {"consumed": self.consumed + 12}},
    "ranks are in different states": {"state_dict": lambda self: {"consumed": self.consumed, "rank": self.dp_rank}},
    "sample 0 instead of 12": {"load_state_dict": lambda self, state: None},
    "other tokens in it": {"__iter__": other_tokens},
    "samples out of turn": {"__init__": lambda self, layout, dp_rank: Plain.__init__(self, layout, 0)},
}


def test_an_exact_loader_passes():
    check_resume(Plain, BEFORE, AFTER, steps=6)


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_loader_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check_resume(type("Broken", (Plain,), BROKEN[message]), BEFORE, AFTER, steps=6)
