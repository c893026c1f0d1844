"""`mixing` under a script of one's own (MEGATRON_SRC): what a run learns, broken off and resumed; replayed."""

import json

import pytest

from conceptloader.order.progress.runlog import FILE_NAME
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import (
    DP2,
    SAVED,
    Layout,
    each_checkout,
    ended,
    needs_checkout,
    pretrain,
    same_losses,
    saving,
)

pytestmark = needs_checkout
SCRIPT = ROOT / "tests/megatron/own_pretrain.py"
PP2 = Layout(("--pipeline-model-parallel-size", "2"))


def set_there(folder):
    """Sample -> the weights that a run set there, as the log has it at last."""
    lines = map(json.loads, (folder / FILE_NAME).read_text().splitlines())
    return {line["at"]: line["weights"] for line in lines if line["kind"] == "weights"}


@each_checkout
@pytest.mark.parametrize("layout", [DP2, PP2], ids=["data", "pipeline"])
def test_a_mixture_that_learns(checkout, layout, tmp_path, monkeypatch):
    folder = write_datasets(tmp_path / "data")
    config = write_config(folder / "data.yaml", mixing={"odm": {}})
    given = {"config": config, "script": SCRIPT}
    refused = pretrain(checkout, tmp_path / "unobserved", layout, "--num-workers", "0", **given)
    assert refused.returncode != 0
    assert "observe: found no losses" in refused.output
    monkeypatch.setenv("LEARNS", "1")
    more = ("--num-workers", "0", *saving(tmp_path / "a"))
    whole = ended(pretrain(checkout, tmp_path / "whole", layout, *more, **given))
    learned = set_there(tmp_path / "a")
    assert len(learned) > 2
    more = ("--num-workers", "0", *saving(tmp_path / "b", tmp_path / "a"), "--ckpt-step", str(SAVED))
    resumed = ended(pretrain(checkout, tmp_path / "resumed", layout, *more, **given))
    same_losses(resumed, whole)
    again = set_there(tmp_path / "b")
    assert again == {at: weights for at, weights in learned.items() if at in again}
    assert max(again) == max(learned)
    refused = pretrain(checkout, tmp_path / "workers", layout, *more, "--num-workers", "1", **given)
    assert "--num-workers 1" in refused.output
    given["config"] = write_config(folder / "other.yaml", mixing={"doremi": {}})
    refused = pretrain(checkout, tmp_path / "other", layout, *more, **given)
    assert "mixing: found doremi, expected odm" in refused.output
    monkeypatch.delenv("LEARNS")
    given["config"] = write_config(folder / "replay.yaml", replay=str(tmp_path / "a"))
    replayed = ended(
        pretrain(checkout, tmp_path / "replayed", layout, "--num-workers", "1", *saving(tmp_path / "c"), **given)
    )
    same_losses(replayed, whole, first=1)
    assert not set_there(tmp_path / "c")
