"""Unmodified pretrain_gpt.py of Megatron-LM checkouts (MEGATRON_SRC): divided, killed and resumed."""

import json
import shutil
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.config import load_config, open_blend
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config, write_datasets
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

TP = ("--tensor-model-parallel-size", "2")
LAYOUTS = {
    "dp2": DP2,
    "pp2": Layout(("--pipeline-model-parallel-size", "2"), readers=(0, 1)),
    "tp2": Layout(TP),
    "tp2-no-mask": Layout((*TP, "--no-create-attention-mask-in-dataloader")),
    "cp2": Layout(("--context-parallel-size", "2"), readers=(0, 1)),
    "pp3": Layout(("--pipeline-model-parallel-size", "3", "--num-layers", "3"), processes=3, readers=(0, 1, 2)),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_datasets(tmp_path_factory.mktemp("data"))


@each_checkout
@pytest.mark.parametrize("name", ["dp2", "pp2", "tp2", "tp2-no-mask", "cp2"])
def test_kill_and_resume(checkout, name, data, tmp_path):
    layout = LAYOUTS[name]
    config = write_config(data / "data.yaml")
    whole = ended(pretrain(checkout, tmp_path / "whole", layout, *saving(tmp_path / "a"), config=config))
    assert sorted(whole.losses) == list(range(1, STEPS + 1))
    assert sorted(whole.taken) == list(layout.readers)
    for rank in layout.readers:
        assert whole.samples(rank) == layout.planned(rank)
    order = open_blend(load_config(config).with_seq_len(64)).order
    for line in whole.taken[0]:
        assert line["dataset_id"] == order.sample_many(np.array(line["sample_index"]))[0].tolist()

    killed = pretrain(
        checkout, tmp_path / "killed", layout, *saving(tmp_path / "b"), config=config,
        kill_after=6 * layout.micro_batches + 1,
    )  # fmt: skip
    assert killed.returncode != 0
    assert STEPS not in killed.losses
    resumed = ended(pretrain(checkout, tmp_path / "resumed", layout, *saving(tmp_path / "b"), config=config))
    same_losses(resumed, whole)
    for rank in layout.readers:
        assert resumed.samples(rank) == layout.planned(rank, SAVED)
    starts = RunLog(tmp_path / "b").starts
    assert [(start.step, start.consumed) for start in starts] == [(0, 0), (SAVED, SAVED * BATCH)]


KINDS = {"torch": ("--ckpt-format", "torch"), "async": ("--async-save",)}


@each_checkout
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_checkpoints(checkout, kind, data, tmp_path):
    """Of torch_dist are those of all the other tests. The state is in Megatron's arguments, in each of them."""
    config, more = write_config(data / "data.yaml"), [*saving(tmp_path / "a"), *KINDS[kind]]
    whole = ended(pretrain(checkout, tmp_path / "whole", DP2, config=config))
    ended(pretrain(checkout, tmp_path / "first", DP2, *more, "--exit-interval", str(SAVED), config=config))
    resumed = ended(pretrain(checkout, tmp_path / "rest", DP2, *more, config=config))
    same_losses(resumed, whole)
    for rank in (0, 1):
        assert resumed.samples(rank) == DP2.planned(rank, SAVED)


@each_checkout
def test_nodes_with_paths_of_their_own(checkout, data, tmp_path):
    """Two nodes that have the data elsewhere start one run, and a third one resumes it from a directory of its own."""
    datasets = {name: {"path": f"${{DISK}}/{name}", "weight": w} for name, w in (("code", 0.3), ("web", 0.7))}
    config = write_config(tmp_path / "data.yaml", datasets=datasets)
    disks = [{"DISK": str(tmp_path / f"disk{number}")} for number in range(3)]
    for disk in disks:
        shutil.copytree(data, disk["DISK"])
    more = [*saving(tmp_path / "a"), "--conceptloader-config", str(config)]
    more += ["--conceptloader-concept-stage", "all"]
    train = partial(pretrain, checkout, in_place=True)
    whole = ended(train(tmp_path / "whole", DP2, *more[-4:], nodes=disks[:1]))
    ended(train(tmp_path / "first", DP2, *more, "--exit-interval", str(SAVED), nodes=disks[:2]))
    rest = ended(train(tmp_path / "rest", ALONE, *more, nodes=disks[2:]))
    same_losses(rest, whole)
    assert rest.samples(0) == ALONE.planned(0, SAVED)
    lost = train(tmp_path / "lost", ALONE, *more)
    assert "datasets.code.path: found ${DISK}, an environment variable that is unset here" in lost.output
    shutil.rmtree(Path(disks[1]["DISK"], "web"))
    shutil.copytree(Path(disks[1]["DISK"], "code"), Path(disks[1]["DISK"], "web"))
    other = train(tmp_path / "other", DP2, *more[-4:], nodes=disks[:2])
    assert other.returncode
    assert not other.taken
    assert "order.members.web.stream_fingerprint: rank(s) 0: " in other.output


@each_checkout
def test_middle_stage_reads_nothing(checkout, data, tmp_path):
    """It has concepts configured, but the stock model does not ask for them; the others go on as ever."""
    layout = LAYOUTS["pp3"]
    run = ended(pretrain(checkout, tmp_path / "run", layout, config=write_config(data / "data.yaml")))
    assert sorted(run.taken) == [0, 2]
    assert run.samples(0) == run.samples(2) == layout.planned(0)


@each_checkout
def test_other_sizes_on_resume(checkout, data, tmp_path):
    """DP2 to DP1, and micro batch 2 to 1, in mid-run: the same samples in the same steps, and the same losses.

    Micro batches of another size add the same numbers in another sequence, which may show in the last printed digit.
    """
    config, checkpoint = write_config(data / "data.yaml"), tmp_path / "a"
    whole = ended(pretrain(checkout, tmp_path / "whole", DP2, config=config))
    stopped = [*saving(checkpoint), "--exit-interval", str(SAVED)]
    ended(pretrain(checkout, tmp_path / "first", DP2, *stopped, config=config))
    for name, layout in {"dp1": ALONE, "mbs1": Layout(dp_size=2, micro_batch=1, readers=(0, 1))}.items():
        resumed = ended(
            pretrain(checkout, tmp_path / name, layout, *saving(tmp_path / f"{name}-out", checkpoint), config=config)
        )
        same_losses(resumed, whole, rounding=1e-6 if name == "mbs1" else 0.0)
        for rank in layout.readers:
            assert resumed.samples(rank) == layout.planned(rank, SAVED)


@each_checkout
@pytest.mark.parametrize("kind", ["torch_dist", "torch"])
def test_a_run_that_another_trainer_began(checkout, kind, data, tmp_path):
    """Killed and resumed on one rank; then a plain loader takes it back. Megatron's own counts begin at 0."""
    begun, at, checkpoint = tmp_path / "plain.json", 3 * BATCH, [*saving(tmp_path / "a"), "--ckpt-format", kind]
    config = write_config(data / f"{kind}.yaml", seq_len=64, continue_from=str(begun))
    plain = cl.make_dataloader(write_config(data / "plain.yaml", seq_len=64), micro_batch_size=BATCH)
    begun.write_text(json.dumps(plain.state_dict_at(at)))
    killed = pretrain(checkout, tmp_path / "killed", DP2, *checkpoint, config=config, kill_after=6 * 2 + 1)
    assert killed.returncode != 0
    resumed = ended(pretrain(checkout, tmp_path / "resumed", ALONE, *checkpoint, config=config))
    for rank in (0, 1):
        expected = [[at + k for k in row] for row in DP2.planned(rank)]
        assert killed.samples(rank) == expected[: len(killed.samples(rank))]
        assert len(killed.samples(rank)) > 2 * SAVED
    assert resumed.samples(0) == [[at + k for k in row] for row in ALONE.planned(0, SAVED)]
    starts = RunLog(tmp_path / "a").starts
    assert [(start.step, start.consumed) for start in starts] == [(0, at), (SAVED, at + SAVED * BATCH)]
    saved = next((tmp_path / "a").glob(f"iter_*{STEPS}"))
    plain.load_state_dict(cl.find_state(saved))
    assert plain.consumed_samples == at + STEPS * BATCH

    other = write_config(data / "other.yaml", continue_from=str(tmp_path / "a"))
    refused = pretrain(checkout, tmp_path / "refused", ALONE, config=other)
    assert refused.returncode != 0
    assert f"found 2 states that differ ({tmp_path / 'a'}" in refused.output


@each_checkout
def test_ramp_up_across_the_kill(checkout, data, tmp_path):
    """Batches of 4, then of 8. Later Megatrons have steps of tokens in place of a ramp, and ignore the ramp."""
    config, total = write_config(data / "data.yaml"), 48
    text = (checkout / "megatron/core/num_microbatches_calculator.py").read_text()
    ramp = ("--rampup-batch-size", "4", "4", "40", "--global-batch-size", "8")
    steps = ("--step-batch-size-schedule", f"0:4 {24 * 64}:8")
    batch = (*(steps if "step_batch_size_schedule" in text else ramp), "--train-samples", str(total))
    save = ["--save-interval", "3"]
    train = partial(pretrain, checkout, config=config, batch=batch)
    whole = ended(train(tmp_path / "whole", DP2, *saving(tmp_path / "a"), *save))
    assert sorted(chain(*whole.samples(0), *whole.samples(1))) == list(range(total))
    killed = train(tmp_path / "killed", DP2, *saving(tmp_path / "b"), *save, kill_after=7)
    assert killed.returncode != 0
    resumed = ended(train(tmp_path / "resumed", DP2, *saving(tmp_path / "b"), *save))
    first = min(resumed.losses)
    assert first > 1
    same_losses(resumed, whole, first)
    for rank in (0, 1):
        count = len(resumed.samples(rank))
        assert resumed.samples(rank) == whole.samples(rank)[-count:]


@each_checkout
def test_changed_past_is_refused_before_anything_is_read(checkout, data, tmp_path):
    config, checkpoint = write_config(data / "data.yaml"), saving(tmp_path / "a")
    ended(pretrain(checkout, tmp_path / "first", ALONE, *checkpoint, "--exit-interval", str(SAVED), config=config))
    halves = {name: {"path": name, "weight": 0.5} for name in ("code", "web")}
    other = write_config(data / "other.yaml", datasets=halves)
    refused = pretrain(checkout, tmp_path / "refused", ALONE, *checkpoint, config=other)
    assert refused.returncode != 0
    assert not refused.taken
    assert "phases.0.weights.code: saved 3/10, now 1/2" in refused.output

    accepted = ["--conceptloader-allow-changed", "phases.0.weights", "--exit-interval", "5"]
    accepted += saving(tmp_path / "b", tmp_path / "a")
    ended(pretrain(checkout, tmp_path / "accepted", ALONE, *accepted, config=other))
    later = [{"at": 5 * BATCH, "weights": {"code": 0.5, "web": 0.5}}]
    ahead = write_config(data / "ahead.yaml", phases=later)
    run = ended(pretrain(checkout, tmp_path / "ahead", ALONE, *saving(tmp_path / "c", tmp_path / "a"), config=ahead))
    assert run.samples(0) == ALONE.planned(0, SAVED)
