"""A script of one's own on a Megatron-LM checkout (MEGATRON_SRC): concepts in its forward_step, or all of its data."""

from itertools import islice
from pathlib import Path

import pytest
import torch

import conceptloader as cl
from conceptloader.blend import load_config
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import (
    DP2,
    SAVED,
    STEPS,
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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(write_datasets(tmp_path_factory.mktemp("data")) / "data.yaml")


@each_checkout
@pytest.mark.parametrize("parallel", ["tensor", "pipeline", "context"])
def test_concepts_in_forward_step(checkout: Path, parallel: str, config: Path, tmp_path: Path) -> None:
    """Both ranks get the tensors of every micro batch; only those that Megatron gives an iterator have read them.

    Scores of concepts and the random number of each sample are those of plain PyTorch.
    """
    more = {"concepts": {"topic": {}, "rating": {}}, "outputs": {"random": True}}
    config = write_config(config.parent / "scored.yaml", **more)
    layout = Layout((f"--{parallel}-{'' if parallel == 'context' else 'model-'}parallel-size", "2"))
    run = ended(pretrain(checkout, tmp_path / "own", layout, config=config, script=SCRIPT))
    if parallel == "tensor":
        stock = ended(pretrain(checkout, tmp_path / "stock", layout, config=config))
        assert run.losses == stock.losses
    assert sorted(run.taken) == ([0] if parallel == "tensor" else [0, 1])
    plain = iter(cl.make_dataloader(load_config(config).with_seq_len(64), micro_batch_size=layout.micro_batch))
    expected = list(islice(plain, STEPS * layout.micro_batches))
    for line, batch in zip(run.taken[0], expected, strict=True):
        for name in ("random", "rating_scores", "topic_ids"):
            assert line[name] == batch[name].flatten().tolist(), name
    for rank in (0, 1):
        assert [line["sample_index"] for line in run.given[rank]] == layout.planned(0)
        for given, taken in zip(run.given[rank], run.taken[0], strict=True):
            for name in ("topic_ids", "rating_scores"):
                assert given[name] == sum(taken[name]), name
            assert given["random"] == torch.tensor(taken["random"]).sum().item()


@each_checkout
def test_data_and_batches_from_conceptloader(
    checkout: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ended(pretrain(checkout, tmp_path / "stock", DP2, config=config))
    monkeypatch.setenv("OWN_DATA", str(config))
    stopped = [*saving(tmp_path / "a"), "--exit-interval", str(SAVED)]
    ended(pretrain(checkout, tmp_path / "first", DP2, *stopped, script=SCRIPT))
    run = ended(pretrain(checkout, tmp_path / "rest", DP2, *saving(tmp_path / "a"), script=SCRIPT))
    same_losses(run, whole)
    halves = {name: {"path": name, "weight": 0.5} for name in ("code", "web")}
    monkeypatch.setenv("OWN_DATA", str(write_config(config.parent / "other.yaml", datasets=halves)))
    refused = pretrain(checkout, tmp_path / "refused", DP2, *saving(tmp_path / "a"), script=SCRIPT)
    assert refused.returncode != 0
    assert "phases.0.weights.code: saved 3/10, now 1/2" in refused.output
