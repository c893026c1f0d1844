"""The example's training script on the megatron-core wheel alone: GPTModel, DDP, pipeline schedules, checkpoints."""

import json
from itertools import islice

import pytest
import yaml

import conceptloader as cl
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT, torchrun
from tests.megatron.pretraining import ALONE, Layout
from tests.nanotron import support as nanotron

SCRIPT = ROOT / "examples/megatron/train.py"
NANOTRON = ROOT / "tests/nanotron/wheel_train.py"
STEPS, SAVED, BATCH = 6, 3, 8
INTERLEAVED = ("--pp", "2", "--chunks", "2")
DP2 = ("--num-workers", "1", "--micro-batch-size", "1", "--recompute")
TP2 = ("--tp", "2", "--no-attention-mask")
ONES = Layout(dp_size=2, micro_batch=1)


def train(folder, config, *more, processes=2, kill_after=0):
    """One model under all layouts, which goes on from the newest checkpoint."""
    script = [str(SCRIPT), "--config", str(config), "--steps", str(STEPS), "--global-batch-size", str(BATCH)]
    script += ["--layers", "4", "--save-every", str(SAVED), "--save", str(folder.parent / "checkpoints"), *more]
    return torchrun(script, folder, processes=processes, kill_after=kill_after, timeout=120)


def planned(layout, rank, first=SAVED, begin=0):
    """Samples of each micro batch of a rank, from step `first` on."""
    return layout.planned(rank, first, begin, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_and_resumed_at_other_sizes(tmp_path):
    """Two stages of two chunks each are killed in step 5; two data-parallel ranks with workers and other micro batches
    go on from the checkpoint at step 3, as do two tensor-parallel ones: the same samples, the same losses."""
    config = write_config(write_datasets(tmp_path / "data") / "data.yaml")
    killed = train(tmp_path / "killed", config, *INTERLEAVED, kill_after=4 * (BATCH // 2) + 2)
    assert killed.returncode != 0
    assert sorted(killed.given) == [1]  # the last stage
    found = [line["sample_index"] for line in killed.given[1]]
    assert found == planned(ALONE, 0, first=0)[: len(found)]
    assert len(found) > SAVED * (BATCH // 2), killed.output[-4000:]

    newest = tmp_path / "checkpoints/latest.txt"
    assert newest.read_text() == f"step-{SAVED}"
    runs = {}
    for name, layout in (("dp2", DP2), ("tp2", TP2)):
        newest.write_text(f"step-{SAVED}")
        runs[name] = run = train(tmp_path / name, config, *layout)
        assert run.returncode == 0, run.output[-4000:]
        assert sorted(run.losses) == list(range(SAVED + 1, STEPS + 1))
        for step in set(run.losses) & set(killed.losses):
            close(run, killed, step)
    for step in runs["dp2"].losses:
        close(runs["dp2"], runs["tp2"], step)
    for rank in (0, 1):
        assert runs["dp2"].samples(rank) == planned(ONES, rank)
    for name in runs:
        assert sorted(runs[name].given) == [0, 1]
    assert sorted(runs["tp2"].taken) == [0]  # the other rank has what this one has read
    assert runs["tp2"].given[0] == runs["tp2"].given[1]
    for given, taken in zip(runs["tp2"].given[1], runs["tp2"].taken[0], strict=True):
        assert given["sample_index"] == taken["sample_index"]
        assert given["topic_ids"] == sum(taken["topic_ids"])
    assert runs["tp2"].samples(0) == planned(ALONE, 0)

    newest.write_text(f"step-{SAVED}")
    half = {name: {"path": name, "weight": 0.5} for name in ("code", "web")}
    refused = train(tmp_path / "refused", write_config(tmp_path / "data/other.yaml", datasets=half), processes=1)
    assert refused.returncode != 0
    assert "phases.0.weights.code: saved 3/10, now 1/2" in refused.output
    assert not refused.taken


def close(one, other, step):
    """But for rounding, which early steps of Adam enlarge. Other samples change a loss by 1e-2."""
    assert float(one.losses[step][0]) == pytest.approx(float(other.losses[step][0]), abs=1e-4), step


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_moves_to_nanotron_and_on_to_megatron(tmp_path):
    """nanotron goes on where a plain loader was, is killed and resumed; Megatron takes over from its checkpoint."""
    config = write_config(write_datasets(tmp_path / "data") / "data.yaml", seq_len=64)
    plain = cl.make_dataloader(config, micro_batch_size=BATCH)
    rows = [ids for batch in islice(plain, 3 * STEPS) for ids in batch["input_ids"].tolist()]
    begun = tmp_path / "plain.json"
    begun.write_text(json.dumps(plain.state_dict_at(2 * BATCH)))

    moved = write_config(tmp_path / "data/nanotron.yaml", seq_len=64, continue_from=str(begun))
    checkpoints, tokens = tmp_path / "nanotron", []
    for name, sizes in {"killed": {"dp": 2}, "resumed": {"micro_batches": 4}}.items():
        layout, killed = nanotron.Layout(**sizes), name == "killed"
        given = nanotron.wheel_config(checkpoints, layout, steps=STEPS, interval=SAVED, resume=not killed)
        given["model"]["model_config"]["vocab_size"] = 256
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(given))
        run = nanotron.torchrun(
            tmp_path / name, layout, [str(NANOTRON), str(tmp_path / f"{name}.yaml"), str(moved)],
            env={"NANOTRON_SRC": ""}, kill=(1, SAVED + 1) if killed else None,
        )  # fmt: skip
        steps = range(SAVED) if killed else range(SAVED, STEPS)
        for step in steps:  # each with micro batches of 2 on one rank or two
            parts = zip(*(rank[step + 1]["batches"] for rank in run.steps), strict=True)
            tokens += [ids for part in parts for batch in part for ids in batch["input_ids"]]
    at = (2 + STEPS) * BATCH
    assert tokens == rows[2 * BATCH : at]

    taken = write_config(tmp_path / "data/megatron.yaml", continue_from=str(checkpoints / str(STEPS)))
    for name in ("first", "resumed"):
        steps = SAVED if name == "first" else STEPS
        ended = train(tmp_path / name / "run", taken, *DP2, "--steps", str(steps), "--save", str(tmp_path / "megatron"))
        assert ended.returncode == 0, ended.output[-4000:]
        for rank in (0, 1):
            first = 0 if name == "first" else SAVED
            samples = planned(ONES, rank, first, at)[: (steps - first) * BATCH // 2]
            assert ended.samples(rank) == samples
    plain.load_state_dict(cl.find_state(tmp_path / "megatron" / f"step-{STEPS}"))
    assert plain.consumed_samples == at + STEPS * BATCH
