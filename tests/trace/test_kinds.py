"""Runs of documents, runs that changed their sequence length, and quarantined ranges."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from conceptloader.loader.torch.loader import Loader, make_dataloader
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import open_run, trace_step


def train(config: Path, output: Path, step: int, steps: int, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """A run of one rank with 4 samples a step; returns the state of its loader."""
    loader: Loader = make_dataloader(config, micro_batch_size=4)
    if state is not None:
        loader.load_state_dict(state)
    loader.log_start(output, step)
    for _ in zip(range(steps), loader, strict=False):
        pass
    loader.close()
    return loader.state_dict()


def test_a_configuration_that_gives_another_order_than_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log answers for what was trained and for what its last launch plans."""
    config, output = tmp_path / "run.yaml", tmp_path / "run"
    content = {"seq_len": 16, "datasets": {"web": {"path": write_dataset(tmp_path / "d", random_documents(60))}}}
    config.write_text(yaml.safe_dump(content))
    output.mkdir()
    state = train(config, output, 0, 3)
    trained = [trace_step(open_run(config, output), step) for step in range(9)]
    assert not caplog.records
    config.write_text(yaml.safe_dump({**content, "seed": 5, "skip": [{"at": 8, "count": 4}]}))
    assert [trace_step(open_run(config, output), step) for step in range(9)] == trained
    assert "differs from that of the launch at step 0: answers are those" in caplog.records[0].getMessage()
    config.write_text(yaml.safe_dump(content))
    train(config, output, 3, 2, state)
    config.write_text(yaml.safe_dump({**content, "seed": 5}))
    assert [trace_step(open_run(config, output), step) for step in range(9)] == trained
