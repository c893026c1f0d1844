"""Losses of samples under a script of one's own (MEGATRON_SRC), of launches that were resumed."""

import json
from functools import partial
from pathlib import Path

import pytest

from conceptloader.trace import open_run, query
from tests.docs import spike
from tests.megatron.pretraining import DP2, OWN, PP2, SAVED, needs_checkout, of_steps

pytestmark = needs_checkout


@pytest.mark.parametrize("layout", [DP2, PP2], ids=["data", "pipeline"])
def test_losses_of_samples(pretrain, layout, tmp_path, monkeypatch, capsys):
    """Their mean is the loss that Megatron prints of a step: of the launch that counts for it. The documents of a spike
    are found by the page's commands."""
    Path("run.yaml").write_text(json.dumps(spike.write_corpus(tmp_path / "data", monkeypatch)))
    batch = *of_steps(spike.BATCH, spike.STEPS), "--vocab-size", "257", "--lr", "1e-2", "--lr-decay-style", "constant"
    train = partial(pretrain, layout=layout, batch=batch, config=Path("run.yaml").resolve(), script=OWN)
    train("unsaved", refused="metrics.losses: found no run log")
    train("unobserved", save="x", refused="metrics.losses: found no losses")
    monkeypatch.setenv("LEARNS", "1")
    checkpoints = Path("checkpoints").resolve()  # the page's name
    whole = train("whole", save=checkpoints)

    def compare(printed, first):
        means = "select step, sum(loss) / sum(tokens) as mean, count(*) as n from losses group by all order by step"
        rows = query(open_run(log="checkpoints"), means, steps=(0, spike.STEPS)).to_pylist()
        assert [(row["step"], row["n"]) for row in rows] == [(step, spike.BATCH) for step in range(spike.STEPS)]
        for row in rows:  # the second line after a start shows the mean of two
            if row["step"] >= first and row["step"] != first + 1:
                assert float(printed.losses[row["step"] + 1][0]) == pytest.approx(row["mean"], rel=1e-5)

    compare(whole, 0)
    resumed = train("resumed", save=checkpoints, batch=(*batch, "--ckpt-step", str(SAVED), "--no-load-optim"))
    assert resumed.losses[spike.STEPS] != whole.losses[spike.STEPS]
    compare(resumed, SAVED)
    spike.find_documents(capsys)
