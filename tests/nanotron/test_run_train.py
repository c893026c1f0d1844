"""The unmodified run_train.py of nanotron main, on CPU: layouts, death and resume. Needs NANOTRON_SRC."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.integrations.nanotron_lm.state import State
from conceptloader.order.progress.runlog import RunLog
from conceptloader.trace import open_run, query
from tests.corpora.token_files import write_datatrove
from tests.docs import spike
from tests.nanotron import support
from tests.nanotron.by_hand import losses
from tests.nanotron.conftest import WEIGHTS
from tests.nanotron.plan import Layout, Oracle, assert_seen
from tests.packing.plain import parts_of

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(900), pytest.mark.slow]

LAYOUTS = {
    "pp3": (Layout(pp=3), {"layers": 4}),
    "tp2": (Layout(tp=2), {}),
    "cp2": (Layout(cp=2), {"model": "qwen2"}),
    "dp2xpp2": (Layout(dp=2, pp=2), {"workers": 1}),
}
PLAN = {"micro_batch": 2, "micro_batches": 2}


def logged_config(folder):
    """The configuration of the last launch that the run log in a folder knows."""
    log = RunLog(folder)
    return log.config(log.starts[-1])


def succeeds(folder, config, **options):
    result = support.run_train(folder, config, **options)
    assert result.returncode == 0, result.output[-4000:]
    return result


@pytest.fixture(scope="module")
def oracle(data):
    return Oracle(data, WEIGHTS, support.SEQ_LEN)


@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_and_resumed(name, tmp_path, dataset, oracle):
    """Ranks see their parts of the plan; a run killed in step 5 goes on from step 3, samples and losses equal."""
    layout, extra = LAYOUTS[name]
    shape = {"dp": layout.dp, "pp": layout.pp, "cp": layout.cp, "tp": layout.tp, **extra}
    checkpoints, first, batch = tmp_path / "c", 1, 4 * layout.dp
    if layout.cp > 1:  # nanotron cannot initialize a model under context parallelism
        begin = support.config(checkpoints, dataset, steps=1, interval=1, **{**shape, "cp": 1})
        succeeds(tmp_path / "begin", begin)
        first = 2
    config = support.config(checkpoints, dataset, resume=first > 1, **shape)
    killed = support.run_train(tmp_path / "k", config, kill=(0, 5))
    assert killed.returncode != 0
    seen = {"start": (first - 1) * batch, "last_may_lack": True, **PLAN}
    assert_seen(killed, oracle, layout, range(first, 6), **seen)
    resumed = succeeds(tmp_path / "r", support.config(checkpoints, dataset, resume=True, **shape))
    assert_seen(resumed, oracle, layout, range(4, 7), start=3 * batch, **PLAN)
    assert resumed.losses()[4] == killed.losses()[4]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset):
    """Checkpoints of steps 3 and 6 of a run with dp 2 and batches of 8, and what it computed."""
    folder = tmp_path_factory.mktemp("trained")
    return folder / "checkpoints", succeeds(folder / "run", support.config(folder / "checkpoints", dataset, dp=2))


@pytest.fixture
def checkpoints(tmp_path, trained):
    """A copy of the checkpoint of step 3."""
    support.copy_checkpoint(trained[0], 3, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_restarted_within_the_process(tmp_path, dataset, oracle, trained):
    """Before a checkpoint and behind one: samples, losses and the state in later checkpoints as if nothing had been."""
    config = support.config(tmp_path / "c", dataset, dp=2, resume=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    script = str(Path(os.environ["NANOTRON_SRC"]) / "run_train.py")
    restarts = str(Path(__file__).with_name("restarts.py"))
    args = ["-m", "conceptloader.launch", restarts, script, "config.yaml"]
    result = support.torchrun(tmp_path, 2, args)
    assert (result.returncode, result.output.count("RESTARTS")) == (0, 4), result.output[-4000:]
    assert_seen(result, oracle, Layout(dp=2), range(1, 7), start=0, **PLAN)
    assert result.losses() == trained[1].losses()
    for step in ("3", "6"):
        assert State.read(tmp_path / "c" / step) == State.read(trained[0] / step)
    assert [start.step for start in RunLog(tmp_path / "c").starts] == [0, 0, 3]


def test_one_rank_instead_of_two_and_then_a_smaller_batch(tmp_path, checkpoints, dataset, oracle, trained):
    """With the smaller one nanotron believes that fewer samples are left than were consumed. A run that forgets the
    counters says so."""
    config = support.config(checkpoints, dataset, micro_batches=4, resume=True)
    result = succeeds(tmp_path / "a", config)
    assert_seen(result, oracle, Layout(), range(4, 7), micro_batch=2, micro_batches=4, start=24)
    assert result.losses() == pytest.approx(trained[1].losses(4), rel=1e-6)
    smaller = support.config(checkpoints, dataset, micro_batch=3, micro_batches=1, steps=8, resume=True)
    result = succeeds(tmp_path / "b", smaller)
    assert_seen(result, oracle, Layout(), range(7, 9), micro_batch=3, micro_batches=1, start=48)
    config = support.config(checkpoints, dataset, steps=1, resume=True, load_lr_scheduler=False)
    result = succeeds(tmp_path / "d", config)
    assert "EVERYTHING READ BEFORE THE CHECKPOINT IS READ AGAIN" in result.output
    assert_seen(result, oracle, Layout(), range(1, 2), start=0, **PLAN)


def test_an_edit_of_the_past_is_refused_and_one_ahead_is_accepted(tmp_path, checkpoints, data, dataset):
    changed = {**dataset, "datasets": {**dataset["datasets"], "math": {**dataset["datasets"]["math"], "weight": 0.5}}}
    refused = support.run_train(tmp_path / "a", support.config(checkpoints, changed, resume=True))
    assert refused.returncode != 0
    assert "phases.0.weights.math: saved 1/10, now 5/14" in refused.output
    ahead = {"web": 0.2, "code": 0.8}
    edited = {**dataset, "phases": [{"at": 30, "weights": ahead}], "skip": [{"at": 26, "count": 2}]}
    result = succeeds(tmp_path / "b", support.config(checkpoints, edited, micro_batches=4, resume=True))
    segments = [cl.Segment(at=30, weights=ahead), cl.Segment(at=26, skip=2)]
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, segments=segments)
    assert_seen(result, oracle, Layout(), range(4, 7), micro_batch=2, micro_batches=4, start=24)


def test_a_second_data_stage(tmp_path, checkpoints, data, dataset):
    """Other weights, a dataset less: nothing is read again, and nothing is left out in any dataset's order."""
    weights = {"web": 0.3, "math": 0.7}
    second = {**dataset, "datasets": {n: {"path": str(data[n]), "weight": w} for n, w in weights.items()}}
    stages = [
        {"name": "first", "start_training_step": 1, "data": support.data(dataset)},
        {"name": "second", "start_training_step": 4, "data": support.data(second)},
    ]
    config = support.config(checkpoints, stages=stages, dp=2, interval=2, steps=7, resume=True)
    result = succeeds(tmp_path / "a", config)
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, segments=[cl.Segment(at=24, weights=weights)])
    assert_seen(result, oracle, Layout(dp=2), range(4, 8), start=24, **PLAN)
    assert len(set(oracle.samples(range(56)))) == 56
    for name in oracle.names:
        draws = [g for g in range(56) if oracle.samples([g])[0][0] == name]
        assert oracle.mixture.locate_many(draws)[1].tolist() == list(range(len(draws)))
    again = succeeds(tmp_path / "b", config)  # its own resume, from step 6
    assert_seen(again, oracle, Layout(dp=2), range(7, 8), start=48, **PLAN)
    assert again.losses() == result.losses(7)
    assert "data stage" not in again.output.replace("data stages", "")
    stages[0] = {**stages[0], "data": support.data(second)}
    edited = support.config(checkpoints, stages=stages, dp=2, interval=2, steps=8, resume=True)
    said = succeeds(tmp_path / "c", edited).output
    assert said.count("data stage 'first' was trained with other settings than it has now (datasets)") == 1


def test_losses_of_packs_are_those_of_a_loop_by_hand(tmp_path, dataset):
    """Qwen2, in whose attention no document sees another, for steps of AdamW. A micro batch without loss gives 0, not
    NaN."""
    packed = {**dataset, "packing": {"bins": 4}}
    plain = {key: value for key, value in packed.items() if key != "type"} | {"seed": 42, "seq_len": support.SEQ_LEN}
    blend = cl.open_blend(plain)
    packed["exclude"] = plain["exclude"] = [
        {
            "dataset": blend.config.names[member],
            "tokens": [parts_of(blend.views[member].packs, pack)[0].start + k for k in (0, 1)],
        }
        for member, _, pack in (blend.order.sample(sample) for sample in (4, 5))
    ]
    config = support.config(tmp_path / "c", packed, model="qwen2", steps=3, save_initial_state=True)
    result = succeeds(tmp_path / "t", config)
    by_hand = losses(tmp_path / "c" / "0", plain, 2, packed=True, interleaved=False)
    assert result.losses() == pytest.approx({step: next(by_hand) for step in (1, 2, 3)}, rel=1e-5)
    steps = [result.steps[0][step] for step in (1, 2, 3)]
    masked = [not any(map(any, batch["label_mask"])) for step in steps for batch in step["batches"]]
    assert [output["loss"] == 0 for step in steps for output in step["outputs"]] == masked
    assert masked[2]


S5CMD = """#!/usr/bin/env python
import json, os, shutil, sys
for folder, _, names in os.walk(sys.argv[-2]):
    for name in names:
        to = os.path.join({to!r}, os.path.relpath(folder, sys.argv[-2]), name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(os.path.join(folder, name), to)
        print(json.dumps({{"success": True, "object": {{"size": 1}}}}))
"""


def nanosets(folder, weights, tokenizer="gpt2"):
    """nanotron's own section over .ds files that are too large to be read whole when they are adopted."""
    rng = np.random.default_rng(0)
    for name in weights:
        (folder / name).mkdir(parents=True)
        documents = [rng.integers(1, support.VOCABULARY, n).tolist() for n in rng.integers(20, 90, 400)]
        write_datatrove(folder / name, "00000.ds", documents, tokenizer=tokenizer)
    return {"dataset_folder": [str(folder / n) for n in weights], "dataset_weights": [*weights.values()]}


def test_a_dataset_folder_as_it_is(tmp_path, capsys):
    """nanotron's own section, without a step: read by us where it is; resumed as any run, but not at another pp.

    Checkpoints are uploaded, and removed with all folders beside them; the files of the corpus are touched.
    """
    weights = {"books": 0.7, "pages": 0.3}
    section = nanosets(tmp_path, weights)
    checkpoints, s5cmd = tmp_path / "c", tmp_path / "s5cmd"
    s5cmd.write_text(S5CMD.format(to=str(tmp_path / "bucket")))
    s5cmd.chmod(0o755)
    upload = {"upload_s3_path": "s3://bucket/run", "remove_after_upload": True, "s5cmd_path": str(s5cmd)}
    upload |= {"s5cmd_numworkers": 1, "s5cmd_concurrency": 1}
    config = support.config(checkpoints, section, pp=2, steps=4)
    first = succeeds(tmp_path / "a", {**config, "s3_upload": upload})
    assert "data_stages[0]: its dataset_folder is read by conceptloader" in first.output
    assert not (checkpoints / "3").exists()
    used = logged_config(checkpoints)["datasets"]
    places = {name: Path(used[name]["path"]) for name in weights}
    assert [(place / "manifest.json").exists() for place in places.values()] == [True, True]
    assert main(["trace", "--run-log", str(checkpoints), "--step", "3"]) == 0
    assert "books" in capsys.readouterr().out
    oracle = Oracle(places, weights, support.SEQ_LEN, roots=[tmp_path / name for name in weights])
    assert_seen(first, oracle, Layout(pp=2), range(1, 5), start=0, **PLAN)
    shutil.copytree(tmp_path / "bucket" / "3", checkpoints / "3")
    for name in weights:
        os.utime(tmp_path / name / "00000.ds", ns=(1, 1))
    refused = support.run_train(tmp_path / "b", support.config(checkpoints, section, resume=True))
    assert refused.returncode != 0
    assert "parallelism.pp: found 1, expected 2, at which" in refused.output
    assert "expected 2, at which" in refused.output
    again = succeeds(tmp_path / "r", support.config(checkpoints, section, pp=2, resume=True))
    assert_seen(again, oracle, Layout(pp=2), range(4, 7), start=12, **PLAN)


def test_a_run_that_nanoset_began(tmp_path):
    """By the stock loader, which wants s3 in its paths, and a tokenizer. Both counts by dataset are said."""
    weights = {"books": 0.7, "pages": 0.3}
    words = {f"w{n}": n for n in range(support.VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), eos_token="w2")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    named = {"vocab_size": support.VOCABULARY, "tokenizer_name": str(tmp_path / "tokenizer"), "token_size_in_bytes": 2}
    section = nanosets(tmp_path / "s3", weights, named["tokenizer_name"]) | named

    def config(section, **options):
        whole = support.config(tmp_path / "c", section, **options)
        whole["model"]["make_vocab_size_divisible_by"] = 1
        return {**whole, "tokenizer": {"tokenizer_name_or_path": str(tmp_path / "tokenizer")}}

    succeeds(tmp_path / "a", config(section, steps=3), launch=None)
    assert not (tmp_path / "c" / "3" / "conceptloader.json").exists()
    accepted = {**section, "nanotron": {"allow_changed": ["unverified"]}}
    ours = succeeds(tmp_path / "b", config(accepted, steps=5, resume=True))
    used = logged_config(tmp_path / "c")["datasets"]
    places = {name: Path(used[name]["path"]) for name in weights}
    oracle = Oracle(places, weights, support.SEQ_LEN, roots=[tmp_path / "s3" / name for name in weights])
    assert_seen(ours, oracle, Layout(), range(4, 6), start=12, **PLAN)
    with_ours = Counter(name for name, _, _ in oracle.samples(range(12)))
    with_theirs = {str(tmp_path / "s3" / name): count for name, count in (("books", 8), ("pages", 4))}
    for counts in (with_ours, with_theirs):
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        assert f"({listed})" in ours.output


def test_weights_that_are_set_while_the_run_is_going(tmp_path, data, dataset):
    """In step 3, from step 4 on, and in the run that is resumed, which sets none."""
    checkpoints, weights = tmp_path / "c", {"math": 1, "code": 1}
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, segments=[cl.Segment(at=24, weights=weights)])
    config = support.config(checkpoints, dataset, dp=2, interval=4)
    first = succeeds(tmp_path / "a", config, launch=["--import", "sets_weights"], path=Path(__file__).parent)
    assert_seen(first, oracle, Layout(dp=2), range(1, 7), start=0, **PLAN)
    lines = [json.loads(line.split("METRICS ")[1]) for line in first.output.splitlines() if "METRICS " in line]
    assert [(one["step"], one["consumed_samples"]) for one in lines] == [(step, 8 * step + 8) for step in range(6)]
    assert [one["weights"].get("web", 0) for one in lines] == [0.6, 0.6, 0.6, 0, 0, 0]
    assert all(0 < one["waited_seconds"] <= one["seconds"] for one in lines)
    again = succeeds(tmp_path / "b", support.config(checkpoints, dataset, dp=2, steps=7, resume=True))
    assert_seen(again, oracle, Layout(dp=2), range(5, 8), start=32, **PLAN)
    assert again.losses(5)[5] == first.losses()[5]


def test_documents_of_a_spike(tmp_path, monkeypatch, capsys):
    """By the commands of the page, from losses of samples whose mean is the loss of each step."""
    dataset = {"type": "conceptloader", **spike.write_corpus(tmp_path / "data", monkeypatch)}
    data = {**support.data(dataset), "seed": dataset.pop("seed")}
    stages = [{"name": "first", "start_training_step": 1, "data": data}]
    config = support.config(
        Path("checkpoints").resolve(), stages=stages, dp=2, steps=spike.STEPS, micro_batch=4, interval=100
    )
    config["model"]["model_config"]["vocab_size"] = 257
    config["optimizer"]["learning_rate_scheduler"] |= {"learning_rate": 0.03, "min_decay_lr": 0.03}
    printed = succeeds(tmp_path / "run", config).losses()
    means = "select step + 1 as step, sum(loss) / sum(tokens) as mean from losses group by all"
    rows = query(open_run(log="checkpoints"), means, steps=(0, spike.STEPS)).to_pylist()
    assert {row["step"]: row["mean"] for row in rows} == pytest.approx(printed, rel=1e-5)
    spike.find_documents(capsys)
