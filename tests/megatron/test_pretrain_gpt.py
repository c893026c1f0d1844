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
from tests.corpora.for_megatron import write_config
from tests.megatron.pretraining import (
    ALONE,
    BATCH,
    DP2,
    PP2,
    SAVED,
    STEPS,
    Layout,
    as_planned,
    needs_checkout,
    same_losses,
)

pytestmark = needs_checkout

TP = ("--tensor-model-parallel-size", "2")
LAYOUTS = {
    "dp2": DP2,
    "pp2": PP2,
    "tp2": Layout(TP),
    "tp2-no-mask": Layout((*TP, "--no-create-attention-mask-in-dataloader")),
    "cp2": Layout(("--context-parallel-size", "2"), readers=(0, 1)),
}


def starts(folder):
    return [(start.step, start.consumed) for start in RunLog(folder).starts]


@pytest.mark.parametrize("name", LAYOUTS)
def test_kill_and_resume(pretrain, name, config, tmp_path):
    layout = LAYOUTS[name]
    train = partial(pretrain, layout=layout, config=config)
    whole = train("whole", save="a")
    assert sorted(whole.losses) == list(range(1, STEPS + 1))
    assert sorted(whole.taken) == list(layout.readers)
    as_planned(whole, layout)
    order = open_blend(load_config(config).with_seq_len(64)).order
    for line in whole.taken[0]:
        assert line["dataset_id"] == order.sample_many(np.array(line["sample_index"]))[0].tolist()

    killed = train("killed", save="b", kill_after=6 * layout.micro_batches + 1)
    assert STEPS not in killed.losses
    resumed = train("resumed", save="b")
    same_losses(resumed, whole)
    as_planned(resumed, layout, SAVED)
    assert starts(tmp_path / "b") == [(0, 0), (SAVED, SAVED * BATCH)]


@pytest.mark.parametrize("kind", [("--ckpt-format", "torch"), ("--async-save",)], ids=["torch", "async"])
def test_kinds_of_checkpoints(pretrain, kind, config):
    """Of torch_dist are those of all the other tests. The state is in Megatron's arguments, in each of them."""
    pretrain.resumed(DP2, *kind, config=config)


def test_nodes_with_paths_of_their_own(pretrain, data, tmp_path):
    """Two nodes that have the data elsewhere start one run, and a third one resumes it from a directory of its own."""
    datasets = {name: {"path": f"${{DISK}}/{name}", "weight": w} for name, w in (("code", 0.3), ("web", 0.7))}
    config = write_config(tmp_path / "data.yaml", datasets=datasets)
    disks = [{"DISK": str(tmp_path / f"disk{number}")} for number in range(3)]
    for disk in disks:
        shutil.copytree(data, disk["DISK"])
    train = partial(pretrain, config=config)
    whole = train("whole", DP2, nodes=disks[:1])
    train("first", DP2, save="a", stop=SAVED, nodes=disks[:2])
    rest = train("rest", ALONE, save="a", nodes=disks[2:])
    same_losses(rest, whole)
    as_planned(rest, ALONE, SAVED)
    train("lost", ALONE, refused="datasets.code.path: found ${DISK}, an environment variable that is unset here")
    shutil.rmtree(Path(disks[1]["DISK"], "web"))
    shutil.copytree(Path(disks[1]["DISK"], "code"), Path(disks[1]["DISK"], "web"))
    refused = "order.members.web.stream_fingerprint: rank(s) 0: "
    assert not train("other", DP2, nodes=disks[:2], refused=refused).taken


def test_middle_stage_reads_nothing(pretrain, config):
    """It has concepts configured, but the stock model does not ask for them; the others go on as ever."""
    layout = Layout(("--pipeline-model-parallel-size", "3", "--num-layers", "3"), processes=3)
    run = pretrain("run", layout, config=config)
    assert sorted(run.taken) == [0, 2]
    assert run.samples(0) == run.samples(2) == layout.planned(0)


def test_other_sizes_on_resume(pretrain, config):
    """DP2 to DP1, and micro batch 2 to 1, in mid-run: the same samples in the same steps, and the same losses.

    Micro batches of another size add the same numbers in another sequence, which may show in the last printed digit.
    """
    train = partial(pretrain, config=config)
    whole = train("whole", DP2)
    train("first", DP2, save="a", stop=SAVED)
    for name, layout in {"dp1": ALONE, "mbs1": Layout(dp_size=2, micro_batch=1, readers=(0, 1))}.items():
        resumed = train(name, layout, save=f"{name}-out", load="a")
        same_losses(resumed, whole, rounding=1e-6 if name == "mbs1" else 0.0)
        as_planned(resumed, layout, SAVED)


@pytest.mark.parametrize("kind", ["torch_dist", "torch"])
def test_a_run_that_another_trainer_began(pretrain, kind, data, tmp_path):
    """Killed and resumed on one rank; then a plain loader takes it back. Megatron's own counts begin at 0."""
    begun, at = tmp_path / "plain.json", 3 * BATCH
    config = write_config(data / f"{kind}.yaml", seq_len=64, continue_from=str(begun))
    plain = cl.make_dataloader(write_config(data / "plain.yaml", seq_len=64), micro_batch_size=BATCH)
    begun.write_text(json.dumps(plain.state_dict_at(at)))
    train = partial(pretrain, save="a", config=config)
    killed = train("killed", DP2, "--ckpt-format", kind, kill_after=6 * 2 + 1)
    resumed = train("resumed", ALONE, "--ckpt-format", kind)
    for rank in (0, 1):
        samples = killed.samples(rank)
        assert samples == DP2.planned(rank, begin=at)[: len(samples)]
        assert len(samples) > 2 * SAVED
    assert resumed.samples(0) == ALONE.planned(0, SAVED, at)
    assert starts(tmp_path / "a") == [(0, at), (SAVED, at + SAVED * BATCH)]
    saved = next((tmp_path / "a").glob(f"iter_*{STEPS}"))
    plain.load_state_dict(cl.find_state(saved))
    assert plain.consumed_samples == at + STEPS * BATCH
    other = write_config(data / "other.yaml", continue_from=str(tmp_path / "a"))
    pretrain("refused", ALONE, config=other, refused=f"found 2 states that differ ({tmp_path / 'a'}")


def test_ramp_up_across_the_kill(pretrain, config):
    """Batches of 4, then of 8. Later Megatrons have steps of tokens in place of a ramp, and ignore the ramp."""
    total = 48
    ramp = ("--rampup-batch-size", "4", "4", "40", "--global-batch-size", "8")
    if pretrain.has("step_batch_size_schedule", "core/num_microbatches_calculator.py"):
        ramp = ("--step-batch-size-schedule", f"0:4 {24 * 64}:8")
    batch = (*ramp, "--train-samples", str(total), "--save-interval", "3")
    train = partial(pretrain, layout=DP2, config=config, batch=batch)
    whole = train("whole", save="a")
    assert sorted(chain(*whole.samples(0), *whole.samples(1))) == list(range(total))
    train("killed", save="b", kill_after=7)
    resumed = train("resumed", save="b")
    first = min(resumed.losses)
    assert first > 1
    same_losses(resumed, whole, first)
    for rank in (0, 1):
        count = len(resumed.samples(rank))
        assert resumed.samples(rank) == whole.samples(rank)[-count:]


def test_changed_past_is_refused_before_anything_is_read(pretrain, config, data):
    pretrain("first", ALONE, save="a", stop=SAVED, config=config)
    half = {"code": 0.5, "web": 0.5}
    other = write_config(data / "other.yaml", datasets={name: {"path": name, "weight": 0.5} for name in half})
    refused = "phases.0.weights.code: saved 3/10, now 1/2"
    assert not pretrain("refused", ALONE, save="a", config=other, refused=refused).taken
    accepted = "--conceptloader-allow-changed", "phases.0.weights"
    pretrain("accepted", ALONE, *accepted, save="b", load="a", stop=5, config=other)
    ahead = write_config(data / "ahead.yaml", phases=[{"at": 5 * BATCH + 1, "weights": half}])
    run = pretrain("ahead", ALONE, save="c", load="a", config=ahead)
    assert f"at {5 * BATCH + 1} is within step 5, which begins at sample {5 * BATCH}" in run.output
    as_planned(run, ALONE, SAVED)
