"""Counting spans per window without looking at every window."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.format.write import ladder
from conceptloader.format.write.ladder import Ladder
from tests.corpora.small import written


@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_shards_above_two_to_the_twenty_tokens(tmp_path, encoding):
    """The real reach: most spans lie near the borders, so that windows across them touch more than any within."""
    rng, shards, runs, base = np.random.default_rng(0), [], [], 0
    for length in (ladder.REACH + 5_000, 40, ladder.REACH + 3, 2 * ladder.REACH):
        near = np.arange(0, min(3000, length - 2), 3)
        starts = np.unique(np.concatenate([near, length - 2 - near, rng.integers(0, length - 2, 100)]))
        starts = starts[np.append(True, np.diff(starts) > 2)]
        spans = [(start, start + 2, "x" * (start % 2)) for start in starts.tolist()]
        shards.append([(np.zeros(length, np.uint16), {"notes": spans})])
        runs.append(starts + base)
        base += length
    path = written(tmp_path / "ds", *shards, token_type="u2", tracks={"notes": {"codec": "json", "encoding": encoding}})
    whole = Ladder()
    whole.add(np.concatenate(runs), np.concatenate(runs) + 2)
    within = [Ladder() for _ in runs]
    for counts, starts in zip(within, runs, strict=True):
        counts.add(starts, starts + 2)
    assert whole.counts[12] > max(counts.counts[12] for counts in within), "borders decide"
    assert list(cl.open_dataset(path).tracks["notes"].max_spans) == whole.counts
    assert cl.verify(path, full=True) == [], "it counts the same"
