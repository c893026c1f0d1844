"""Losses of samples under a script of one's own (MEGATRON_SRC), of launches that were resumed."""

from pathlib import Path
from typing import Any

import pytest

from conceptloader.trace import open_run, query
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import BATCH, DP2, SAVED, Layout, each_checkout, ended, needs_checkout, pretrain, saving

pytestmark = needs_checkout
SCRIPT = ROOT / "tests/megatron/own_pretrain.py"
PP2 = Layout(("--pipeline-model-parallel-size", "2"))


@each_checkout
@pytest.mark.parametrize("layout", [DP2, PP2], ids=["data", "pipeline"])
def test_losses_of_samples(checkout: Path, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their mean is the loss that Megatron prints of a step: of the launch that counts for it."""
    folder = write_datasets(tmp_path / "data")
    given: Any = {"config": write_config(folder / "data.yaml", metrics={"losses": True}), "script": SCRIPT}
    refused = pretrain(checkout, tmp_path / "unsaved", layout, **given)
    assert "metrics.losses: found no run log" in refused.output
    refused = pretrain(checkout, tmp_path / "unobserved", layout, *saving(tmp_path / "x"), **given)
    assert "metrics.losses: found no losses" in refused.output
    monkeypatch.setenv("LEARNS", "1")
    saved = tmp_path / "a"
    whole = ended(pretrain(checkout, tmp_path / "whole", layout, *saving(saved), **given))
    steps = max(whole.losses)

    def compare(printed: Any, first: int) -> None:
        means = "select step, sum(loss) / sum(tokens) as mean, count(*) as n from losses group by all order by step"
        rows = query(open_run(log=saved), means, steps=(0, steps)).to_pylist()
        assert [(row["step"], row["n"]) for row in rows] == [(step, BATCH) for step in range(steps)]
        for row in rows:  # the second line after a start shows the mean of two
            if row["step"] >= first and row["step"] != first + 1:
                assert float(printed.losses[row["step"] + 1][0]) == pytest.approx(row["mean"], rel=1e-5)

    compare(whole, 0)
    more = (*saving(saved), "--ckpt-step", str(SAVED), "--no-load-optim")
    resumed = ended(pretrain(checkout, tmp_path / "resumed", layout, *more, **given))
    assert resumed.losses[steps] != whole.losses[steps]
    compare(resumed, SAVED)
