"""Counting spans per window without looking at every window."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.format.write import ladder
from conceptloader.format.write.ladder import Ladder


@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_shards_above_two_to_the_twenty_tokens(tmp_path, encoding):
    """The real reach: most spans lie near the borders, so that windows across them touch more than any within."""
    lengths = [ladder.REACH + 5_000, 40, ladder.REACH + 3, 2 * ladder.REACH]
    rng = np.random.default_rng(0)
    options = cl.writing.BuildOptions(
        token_type="u2", tracks={"notes": cl.writing.TrackOptions(codec="json", encoding=encoding)}
    )
    build = cl.writing.create_writer(tmp_path / "ds", options, plan=lengths)
    runs, base = [], 0
    for shard, length in enumerate(lengths):
        near = np.concatenate([np.arange(0, min(3000, length), 3), length - 2 - np.arange(0, min(3000, length - 2), 3)])
        starts = np.unique(np.concatenate([near, rng.integers(0, length - 2, 100) // 7 * 7]))
        starts = starts[np.append(True, np.diff(starts) > 2)]
        with build.shard(shard) as writer:
            spans = [(int(start), int(start) + 2, "x" * int(start % 2)) for start in starts]
            writer.add_document(np.zeros(length, np.uint16), {"notes": spans})
        runs.append(starts + base)
        base += length
    cl.writing.finalize(tmp_path / "ds")
    whole = Ladder()
    whole.add(np.concatenate(runs), np.concatenate(runs) + 2)
    within = [Ladder() for _ in runs]
    for counts, starts in zip(within, runs, strict=True):
        counts.add(starts, starts + 2)
    assert whole.counts[12] > max(counts.counts[12] for counts in within), "borders decide"
    assert list(cl.open_dataset(tmp_path / "ds").tracks["notes"].max_spans) == whole.counts
    assert cl.verify(tmp_path / "ds", full=True) == [], "it counts the same"
