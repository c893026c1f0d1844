"""A script of one's own on a Megatron-LM checkout (MEGATRON_SRC), launched or not: concepts in its forward_step."""

import json
from itertools import islice

import pytest
import torch

import conceptloader as cl
from conceptloader.config import load_config
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT
from tests.megatron.pretraining import (
    ALONE,
    BATCH,
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
def config(tmp_path_factory):
    return write_config(write_datasets(tmp_path_factory.mktemp("data")) / "data.yaml")


@each_checkout
@pytest.mark.parametrize("parallel", ["tensor", "pipeline", "context"])
def test_concepts_in_forward_step(checkout, parallel, config, tmp_path):
    """Both ranks get the tensors of every micro batch; only those that Megatron gives an iterator have read them.

    Scores of concepts, weights and fields of tokens, numbers of spans and the random number of each sample are those of
    plain PyTorch; context parallel ranks have parts of what runs along the tokens.
    """
    outputs = {"sample_seed": True, "loss_weight": "weight", "fields": {"parity": "inputs"}}
    more = {"tracks": {"topic": {}, "rating": {}, "length": {}}, "outputs": outputs}
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
        for name in ("sample_seed", "rating_scores", "topic_ids", "loss_weight", "parity", "length_values"):
            assert line[name] == batch[name].flatten().tolist(), name
    for rank in (0, 1):
        assert [line["sample_index"] for line in run.given[rank]] == layout.planned(0)
        for given, taken in zip(run.given[rank], run.taken[0], strict=True):
            for name in ("topic_ids", "rating_scores", "length_values"):
                assert given[name] == sum(taken[name]), name
            assert given["sample_seed"] == torch.tensor(taken["sample_seed"]).sum().item()
    for found in zip(run.given[0], run.given[1], run.taken[0], strict=True):
        for name in ("loss_weight", "parity"):
            parts, whole = [line[name] for line in found[:2]], sum(found[2][name])
            assert sum(parts) == whole if parallel == "context" else parts == [whole] * 2


@each_checkout
def test_a_script_that_installs_the_adapter_itself(checkout, config, tmp_path):
    whole = ended(pretrain(checkout, tmp_path / "stock", DP2, config=config))
    own = {"script": SCRIPT, "config": config, "launched": False}
    stopped = [*saving(tmp_path / "a"), "--exit-interval", str(SAVED)]
    ended(pretrain(checkout, tmp_path / "first", DP2, *stopped, **own))
    run = ended(pretrain(checkout, tmp_path / "rest", DP2, *saving(tmp_path / "a"), **own))
    same_losses(run, whole)


@each_checkout
@pytest.mark.parametrize("by", ["launcher", "install", "wrapper"])
def test_restart_in_the_same_process(checkout, by, config, tmp_path, monkeypatch):
    """The samples go on where the checkpoint is, every later one has the state, and the log each start.

    wrapper: nvidia-resiliency-ext restarts. Its 0.4.1 fits core_v0.16.1; later Megatrons ask for its version.
    """
    given = {"config": config, "launched": by != "install"}
    monkeypatch.setenv("FAIL_IN", "5")
    save = [*saving(tmp_path / "a"), "--exit-interval", "6"]
    if by == "wrapper":
        save += ["--inprocess-restart", "--inprocess-active-world-size", "1"]
        nvrx = pytest.importorskip("nvidia_resiliency_ext")
        asks = checkout / "megatron/core/dist_checkpointing/strategies/nvrx.py"
        if asks.exists() and not hasattr(nvrx, "__version__"):
            pytest.skip("this Megatron asks nvidia-resiliency-ext for its version, which it has not got")
    run = ended(pretrain(checkout, tmp_path / "run", ALONE, *save, script=SCRIPT, **given))
    planned = ALONE.planned(0)
    expected = planned[: 5 * ALONE.micro_batches] + planned[SAVED * ALONE.micro_batches : 6 * ALONE.micro_batches]
    assert [line["sample_index"] for line in run.given[0]] == expected
    monkeypatch.delenv("FAIL_IN")
    starts = [(start.step, start.consumed) for start in RunLog(tmp_path / "a").starts]
    assert starts == [(0, 0), (SAVED, SAVED * BATCH)]
    more = saving(tmp_path / "b", tmp_path / "a")
    resumed = ended(pretrain(checkout, tmp_path / "resumed", ALONE, *more, script=SCRIPT, **given))
    assert min(resumed.losses) == 7
    log = [(start.consumed, start.spec) for start in RunLog(tmp_path / "b").starts]
    assert log == [(6 * BATCH, RunLog(tmp_path / "a").starts[0].spec)]


@each_checkout
def test_a_stage_in_the_middle_with_mtp_layers(checkout, config, tmp_path):
    """Its tokens and labels reach it."""
    stages = "--pipeline-model-parallel-size", "3", "--pipeline-model-parallel-layout", "Et|tm|L"
    layout = Layout(("--mtp-num-layers", "1", "--position-embedding-type", "rope", *stages), processes=3)
    run = ended(pretrain(checkout, tmp_path / "launched", layout, config=config))
    for rank in range(3):
        assert run.samples(rank) == layout.planned(0)


@each_checkout
def test_weights_that_are_set_while_the_run_is_going(checkout, config, tmp_path, monkeypatch):
    """From the next step on, on all ranks, and in the run that is resumed; metrics of every step say so."""
    monkeypatch.setenv("SET_WEIGHTS", "2")
    monkeypatch.setenv("METRICS", str(tmp_path / "metrics.whole"))
    more = ("--num-workers", "0", *saving(tmp_path / "a"))
    whole = ended(pretrain(checkout, tmp_path / "whole", DP2, *more, config=config, script=SCRIPT))
    for rank in DP2.readers:
        assert whole.samples(rank) == DP2.planned(rank)
        ids = [(min(line["sample_index"]) >= 24, set(line["dataset_id"])) for line in whole.taken[rank]]
        assert {0} == set.union(*(found for after, found in ids if after))
        assert {0, 1} == set.union(*(found for after, found in ids if not after))
    monkeypatch.delenv("SET_WEIGHTS")
    monkeypatch.setenv("METRICS", str(tmp_path / "metrics.resumed"))
    more = ("--num-workers", "0", *saving(tmp_path / "b", tmp_path / "a"), "--ckpt-step", str(SAVED))
    resumed = ended(pretrain(checkout, tmp_path / "resumed", DP2, *more, config=config, script=SCRIPT))
    same_losses(resumed, whole)
    log = RunLog(tmp_path / "a")
    assert [(start.step, start.consumed) for start in log.starts] == [(0, 0)]
    for name, first in (("whole", 0), ("resumed", SAVED)):
        lines = (tmp_path / f"metrics.{name}.0").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [one["step"] for one in found] == list(range(first, STEPS))
        assert [one["weights"].get("web", 0) for one in found] == [0.7, 0.7, 0.7, 0, 0, 0, 0, 0][first:]
        assert found[-1]["consumed_samples"] == sum(found[-1]["samples"].values()) == STEPS * BATCH
        assert all(0 <= one["waited_seconds"] <= one["seconds"] for one in found)
