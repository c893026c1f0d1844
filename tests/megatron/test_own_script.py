"""A script of one's own (MEGATRON_SRC): concepts in forward_step, under the launcher and with install()."""

import json
from functools import partial
from itertools import islice

import pytest
import torch

import conceptloader as cl
from conceptloader.config import load_config
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config
from tests.megatron.pretraining import (
    ALONE,
    BATCH,
    DP2,
    OWN,
    SAVED,
    STEPS,
    WHOLE,
    Layout,
    needs_checkout,
    same_losses,
)

pytestmark = needs_checkout
PARALLEL = {
    "tensor": Layout(("--tensor-model-parallel-size", "2")),
    "pipeline": Layout(("--pipeline-model-parallel-size", "2")),
    "context": Layout(("--context-parallel-size", "2")),
}
each_way = pytest.mark.parametrize("parallel", PARALLEL)


def in_plain_pytorch(config, layout):
    """The micro batches of a run, as one process of plain PyTorch gets them."""
    plain = iter(cl.make_dataloader(load_config(config).with_seq_len(64), micro_batch_size=layout.micro_batch))
    return list(islice(plain, STEPS * layout.micro_batches))


def has_its_part(parallel, run, name, wholes):
    """Of what runs along the tokens, context parallel ranks have parts, others the whole. wholes: sums."""
    for first, second, whole in zip(run.given[0], run.given[1], wholes, strict=True):
        parts = [first[name], second[name]]
        assert sum(parts) == whole if parallel == "context" else parts == [whole] * 2


@each_way
def test_concepts_in_forward_step(pretrain, parallel, data):
    """Both ranks get the tensors of every micro batch; only those that Megatron gives an iterator have read them.

    Scores of concepts, weights and fields of tokens, numbers of spans and the random number of each sample are those of
    plain PyTorch.
    """
    outputs = {"sample_seed": True, "loss_weight": "weight", "fields": {"parity": "inputs"}}
    more = {"tracks": {"topic": {}, "rating": {}, "length": {}}, "outputs": outputs}
    config, layout = write_config(data / "scored.yaml", **more), PARALLEL[parallel]
    run = pretrain("own", layout, config=config, script=OWN)
    if parallel == "tensor":
        assert run.losses == pretrain("stock", layout, config=config).losses
    assert sorted(run.taken) == ([0] if parallel == "tensor" else [0, 1])
    for line, batch in zip(run.taken[0], in_plain_pytorch(config, layout), strict=True):
        for name in ("sample_seed", "rating_scores", "topic_ids", "loss_weight", "parity", "length_values"):
            assert line[name] == batch[name].flatten().tolist(), name
    for rank in (0, 1):
        assert [line["sample_index"] for line in run.given[rank]] == layout.planned(0)
        for given, taken in zip(run.given[rank], run.taken[0], strict=True):
            for name in ("topic_ids", "rating_scores", "length_values"):
                assert given[name] == sum(taken[name]), name
            assert given["sample_seed"] == torch.tensor(taken["sample_seed"]).sum().item()
    for name in ("loss_weight", "parity"):
        has_its_part(parallel, run, name, [sum(line[name]) for line in run.taken[0]])


def test_a_script_that_installs_the_adapter_itself(pretrain, config):
    own = {"script": OWN, "config": config, "launched": False}
    pretrain.resumed(DP2, whole=pretrain("whole", DP2, config=config), **own)


@pytest.mark.parametrize("by", ["launcher", "install", "wrapper"])
def test_restart_in_the_same_process(pretrain, by, config, tmp_path, monkeypatch):
    """The samples go on where the checkpoint is, every later one has the state, and the log each start.

    wrapper: nvidia-resiliency-ext restarts. Its 0.4.1 fits core_v0.16.1; later Megatrons ask for its version.
    """
    train = partial(pretrain, layout=ALONE, config=config, launched=by != "install", script=OWN)
    monkeypatch.setenv("FAIL_IN", "5")
    restarts = []
    if by == "wrapper":
        restarts = ["--inprocess-restart", "--inprocess-active-world-size", "1"]
        nvrx = pytest.importorskip("nvidia_resiliency_ext")
        asks = pretrain.checkout / "megatron/core/dist_checkpointing/strategies/nvrx.py"
        if asks.exists() and not hasattr(nvrx, "__version__"):
            pytest.skip("this Megatron asks nvidia-resiliency-ext for its version, which it has not got")
    run = train("run", save="a", stop=6, batch=(*WHOLE, *restarts))
    planned = ALONE.planned(0)
    expected = planned[: 5 * ALONE.micro_batches] + planned[SAVED * ALONE.micro_batches : 6 * ALONE.micro_batches]
    assert [line["sample_index"] for line in run.given[0]] == expected
    monkeypatch.delenv("FAIL_IN")
    log = RunLog(tmp_path / "a").starts
    assert [(start.step, start.consumed) for start in log] == [(0, 0), (SAVED, SAVED * BATCH)]
    assert min(train("resumed", save="b", load="a").losses) == 7
    assert [(start.consumed, start.spec) for start in RunLog(tmp_path / "b").starts] == [(6 * BATCH, log[0].spec)]


def test_a_stage_in_the_middle_with_mtp_layers(pretrain, config):
    """Its tokens and labels reach it."""
    stages = "--pipeline-model-parallel-size", "3", "--pipeline-model-parallel-layout", "Et|tm|L"
    layout = Layout(("--mtp-num-layers", "1", "--position-embedding-type", "rope", *stages), processes=3)
    run = pretrain("launched", layout, config=config)
    for rank in range(3):
        assert run.samples(rank) == layout.planned(0)


def test_weights_that_are_set_while_the_run_is_going(pretrain, config, tmp_path, monkeypatch):
    """From the next step on, on all ranks, and in the run that is resumed; metrics of every step say so."""

    def train(name, *more, **options):
        monkeypatch.setenv("METRICS", str(tmp_path / f"metrics.{name}"))
        return pretrain(name, DP2, "--num-workers", "0", *more, config=config, script=OWN, **options)

    monkeypatch.setenv("SET_WEIGHTS", "2")
    whole = train("whole", save="a")
    for rank in DP2.readers:
        assert whole.samples(rank) == DP2.planned(rank)
        ids = [(min(line["sample_index"]) >= 24, set(line["dataset_id"])) for line in whole.taken[rank]]
        assert {0} == set.union(*(found for after, found in ids if after))
        assert {0, 1} == set.union(*(found for after, found in ids if not after))
    monkeypatch.delenv("SET_WEIGHTS")
    same_losses(train("resumed", "--ckpt-step", SAVED, save="b", load="a"), whole)
    assert [(start.step, start.consumed) for start in RunLog(tmp_path / "a").starts] == [(0, 0)]
    for name, first in (("whole", 0), ("resumed", SAVED)):
        found = [json.loads(line) for line in (tmp_path / f"metrics.{name}.0").read_text().splitlines()]
        assert [one["step"] for one in found] == list(range(first, STEPS))
        assert [one["weights"].get("web", 0) for one in found] == [0.7, 0.7, 0.7, 0, 0, 0, 0, 0][first:]
        assert found[-1]["consumed_samples"] == sum(found[-1]["samples"].values()) == STEPS * BATCH
        assert all(0 <= one["waited_seconds"] <= one["seconds"] for one in found)
