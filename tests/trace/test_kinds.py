"""Runs of documents, runs that changed their sequence length, and quarantined ranges."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conceptloader.loader.torch.loader import Loader, make_dataloader
from conceptloader.order.progress.runlog import RunLog
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import BatchRecorder, audit, open_run, read_record, trace_step


def train(config: Path, output: Path, step: int, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """A run of one rank with 4 samples a step; returns the state of its loader."""
    loader: Loader = make_dataloader(config, micro_batch_size=4)
    if state is not None:
        loader.load_state_dict(state)
    loader.log_start(output, step)
    starts = RunLog(output).starts
    recorder = BatchRecorder(output / "record", len(starts), 0, starts[-1])
    for number, batch in zip(range(steps), loader, strict=False):
        recorder.write(step + number, 0, batch)
    recorder.close()
    loader.close()
    return loader.state_dict()


def test_a_configuration_that_gives_another_order_than_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log answers for what was trained and for what its last launch plans, the configuration only if asked."""
    config, output = tmp_path / "run.yaml", tmp_path / "run"
    content = {"seq_len": 16, "datasets": {"web": {"path": write_dataset(tmp_path / "d", random_documents(60))}}}
    config.write_text(yaml.safe_dump(content))
    output.mkdir()
    state = train(config, output, 0, 3)
    trained = [trace_step(open_run(config, output), step) for step in range(9)]
    assert not caplog.records
    config.write_text(yaml.safe_dump({**content, "seed": 5, "skip": [{"at": 8, "count": 4}]}))
    assert [trace_step(open_run(config, output), step) for step in range(9)] == trained
    found = r"launched at step 0 \(seed: saved 1234, now 5; skips: saved \[\], now \[\(8, 4\)\]\); answers are those of"
    assert re.search(found, caplog.records[0].getMessage())
    planned = [trace_step(open_run(config, output, planned=True), step) for step in range(9)]
    assert planned != trained
    assert [[one.places for one in step] for step in planned] == [[one.places for one in step] for step in trained]
    config.write_text(yaml.safe_dump(content))
    train(config, output, 3, 2, state)
    config.write_text(yaml.safe_dump({**content, "seed": 5}))
    assert [trace_step(open_run(config, output), step) for step in range(9)] == trained
    assert audit(open_run(config, output), read_record(output / "record")).difference is None
    difference = audit(open_run(config, output, planned=True), read_record(output / "record")).difference
    assert difference is not None
    assert (difference.step, difference.what) == (0, "tokens")
