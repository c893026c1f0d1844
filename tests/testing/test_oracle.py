"""The resume oracle passes a loader that resumes exactly, and catches those that do not."""

import numpy as np
import pytest

from conceptloader.testing import Layout, check_resume, global_steps

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


class ReadsAhead(Plain):
    def state_dict(self):
        return {"consumed": self.consumed + 12}


class OwnState(Plain):
    def state_dict(self):
        return {"consumed": self.consumed, "dp_rank": self.dp_rank}


class StartsAgain(Plain):
    def load_state_dict(self, state):
        pass


class OtherTokens(Plain):
    resumed = False

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.resumed = True

    def __iter__(self):
        for batch in super().__iter__():
            yield {**batch, "tokens": batch["tokens"] + self.resumed}


class SameSamples(Plain):
    """Every rank reads what rank 0 reads."""

    def __init__(self, layout, dp_rank):
        super().__init__(layout, 0)


def test_an_exact_loader_passes():
    check_resume(Plain, BEFORE, AFTER, steps=6)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (ReadsAhead, "sample 24 instead of 12"),
        (OwnState, "ranks are in different states"),
        (StartsAgain, "sample 0 instead of 12"),
        (OtherTokens, "other tokens in it"),
        (SameSamples, "samples out of turn"),
    ],
)
def test_a_broken_loader_is_caught(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_resume(broken, BEFORE, AFTER, steps=6)


def test_steps_are_whole_rows_in_order():
    (rows, state), *_ = global_steps(Plain, BEFORE, 2)
    assert [int(row["sample_index"]) for row in rows] == list(range(12))
    assert [int(row["tokens"]) for row in rows] == [k * k for k in range(12)]
    assert state == {"consumed": 12}
    assert sorted(rows[0]) == ["sample_index", "tokens"]
