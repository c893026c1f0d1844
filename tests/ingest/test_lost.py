"""Spans that get no token: counted by track through restarts and workers, shown, and refused above a limit."""

import pytest

from conceptloader.errors import InputError
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.build.unaligned import TrackLoss
from tests.corpora.records import build, write_rows


def records(count=40, lost=10):
    """Documents with a span of each track; in the first `lost` of them that of `concepts` is empty."""
    return [
        {
            "id": f"d{i}" if i else None,
            "text": "a red cat",
            "spans": [{"start": 2, "end": 2 if i < lost else 5, "concepts": ["animal"]}],
            "spans_topic": [{"start": 0, "end": 1, "concepts": [i]}],
        }
        for i in range(count)
    ]


EXAMPLES = [
    {"document": "document 0 of shard 00000", "start": 2, "end": 2, "text": ""},
    {"document": "document 'd1'", "start": 2, "end": 2, "text": ""},
    {"document": "document 'd2'", "start": 2, "end": 2, "text": ""},
]


@pytest.mark.parametrize(("workers", "kind"), [(1, "jsonl"), (2, "parquet")])
def test_too_many_are_an_error_that_keeps_the_shards(tmp_path, workers, kind):
    source = write_rows(tmp_path / f"in.{kind}", records())
    out = tmp_path / "out"
    message = (
        r"out: track 'concepts': found 10 of 40 spans \(25.00%\) got no token, such as \[2, 2\) of document 0 of "
        r"shard 00000 \(''\), \[2, 2\) of document 'd1' .*, expected at most 24.00%; .*--max-unaligned-spans.*"
        r"finished shards are kept"
    )
    for _ in range(2):  # also when nothing is left to be written
        with pytest.raises(InputError, match=message):
            build([source], out, workers=workers, shard_input_bytes=900, max_unaligned_spans=0.24)
        assert not (out / "manifest.json").exists()
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.shard.json")}
    assert len(times) > 2
    summary = build([source], out, workers=workers, shard_input_bytes=900, max_unaligned_spans=0.25)
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    assert summary.kept_shards == summary.shards
    assert summary.lost_spans == 10
    assert summary.losses == {"concepts": TrackLoss(40, 10, EXAMPLES), "topic": TrackLoss(40, 0, [])}
    assert verify(out, full=True) == []
    again = build([source], out, shard_input_bytes=900, max_unaligned_spans=0.25)
    assert again.losses == summary.losses
    with pytest.raises(InputError, match="the dataset is complete and stays as it is"):
        build([source], out, shard_input_bytes=900, max_unaligned_spans=0.24)
