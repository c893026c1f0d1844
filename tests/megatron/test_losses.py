"""Losses of samples under a script of one's own (MEGATRON_SRC), of launches that were resumed."""

import json
from pathlib import Path

import pytest

from conceptloader.trace import open_run, query
from tests.docs import spike
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import DP2, SAVED, Layout, each_checkout, ended, needs_checkout, pretrain, saving

pytestmark = needs_checkout
SCRIPT = ROOT / "tests/megatron/own_pretrain.py"
PP2 = Layout(("--pipeline-model-parallel-size", "2"))


@each_checkout
@pytest.mark.parametrize("layout", [DP2, PP2], ids=["data", "pipeline"])
def test_losses_of_samples(checkout, layout, tmp_path, monkeypatch, capsys):
    """Their mean is the loss that Megatron prints of a step: of the launch that counts for it. The documents of a spike
    are found by the page's commands."""
    Path("run.yaml").write_text(json.dumps(spike.write_corpus(tmp_path / "data", monkeypatch)))
    given = {"config": Path("run.yaml").resolve(), "script": SCRIPT}
    more = ("--vocab-size", "257", "--lr", "1e-2", "--lr-decay-style", "constant")
    more += ("--global-batch-size", str(spike.BATCH), "--train-iters", str(spike.STEPS))
    refused = pretrain(checkout, tmp_path / "unsaved", layout, *more, **given)
    assert "metrics.losses: found no run log" in refused.output
    refused = pretrain(checkout, tmp_path / "unobserved", layout, *saving(tmp_path / "x"), *more, **given)
    assert "metrics.losses: found no losses" in refused.output
    monkeypatch.setenv("LEARNS", "1")
    more += (*saving(Path("checkpoints").resolve()),)
    whole = ended(pretrain(checkout, tmp_path / "whole", layout, *more, **given))

    def compare(printed, first):
        means = "select step, sum(loss) / sum(tokens) as mean, count(*) as n from losses group by all order by step"
        rows = query(open_run(log="checkpoints"), means, steps=(0, spike.STEPS)).to_pylist()
        assert [(row["step"], row["n"]) for row in rows] == [(step, spike.BATCH) for step in range(spike.STEPS)]
        for row in rows:  # the second line after a start shows the mean of two
            if row["step"] >= first and row["step"] != first + 1:
                assert float(printed.losses[row["step"] + 1][0]) == pytest.approx(row["mean"], rel=1e-5)

    compare(whole, 0)
    resumed = ended(
        pretrain(checkout, tmp_path / "resumed", layout, *more, "--ckpt-step", str(SAVED), "--no-load-optim", **given)
    )
    assert resumed.losses[spike.STEPS] != whole.losses[spike.STEPS]
    compare(resumed, SAVED)
    spike.find_documents(capsys)
