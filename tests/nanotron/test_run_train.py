"""The unmodified run_train.py of nanotron main, on CPU: layouts, death and resume. Needs NANOTRON_SRC."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
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
from tests.nanotron.plan import Oracle, assert_seen
from tests.packing.plain import parts_of

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(900), pytest.mark.slow]

LAYOUTS = {
    "pp3": {"pp": 3, "layers": 4},
    "tp2": {"tp": 2},
    "cp2": {"cp": 2, "model": "qwen2"},
    "dp2xpp2": {"dp": 2, "pp": 2, "workers": 1},
}


def logged_config(folder):
    """The configuration of the last launch that the run log in a folder knows."""
    log = RunLog(folder)
    return log.config(log.starts[-1])


def of_segments(data, *segments):
    return Oracle(data, WEIGHTS, support.SEQ_LEN, segments=segments)


@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_and_resumed(name, train, oracle):
    """Ranks see their parts of the plan; a run killed in step 5 goes on from step 3, samples and losses equal."""
    shape, first = LAYOUTS[name], 1
    if name == "cp2":  # nanotron cannot initialize a model under context parallelism
        train("begin", steps=1, interval=1, **{**shape, "cp": 1})
        first = 2
    killed = train("k", resume=first > 1, kill=(0, 5), **shape)
    assert_seen(killed, oracle, range(first, 6), last_may_lack=True)
    resumed = train("r", resume=True, **shape)
    assert_seen(resumed, oracle, range(4, 7))
    assert resumed.losses()[4] == killed.losses()[4]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, dataset):
    """Checkpoints of steps 3 and 6 of a run with dp 2 and batches of 8, and what it computed."""
    folder = tmp_path_factory.mktemp("trained")
    return folder / "c", support.train(folder, "run", dataset=dataset, dp=2)


@pytest.fixture
def begun(tmp_path, trained):
    """Only the checkpoint of step 3, and the run log up to now, as a run killed after that step leaves them."""
    target = tmp_path / "c"
    shutil.copytree(trained[0] / "3", target / "3")
    (target / "latest.txt").write_text("3")
    for log in trained[0].glob("*.jsonl"):
        shutil.copy(log, target)


def test_restarted_within_the_process(train, tmp_path, oracle, trained):
    """Before a checkpoint and behind one: samples, losses and the state in later checkpoints as if nothing had been."""
    result = train("run", dp=2, resume=True, script=[str(Path(__file__).with_name("restarts.py"))])
    assert result.output.count("RESTARTS") == 4
    assert_seen(result, oracle, range(1, 7))
    assert result.losses() == trained[1].losses()
    for step in ("3", "6"):
        assert State.read(tmp_path / "c" / step) == State.read(trained[0] / step)
    assert [start.step for start in RunLog(tmp_path / "c").starts] == [0, 0, 3]


@pytest.mark.usefixtures("begun")
def test_one_rank_instead_of_two_and_then_a_smaller_batch(train, oracle, trained):
    """With the smaller one nanotron believes that fewer samples are left than were consumed. A run that forgets the
    counters says so."""
    result = train("a", micro_batches=4, resume=True)
    assert_seen(result, oracle, range(4, 7))
    assert result.losses() == pytest.approx(trained[1].losses(4), rel=1e-6)
    result = train("b", micro_batch=3, micro_batches=1, steps=8, resume=True)
    assert_seen(result, oracle, range(7, 9), start=48)
    result = train("d", steps=1, resume=True, load_lr_scheduler=False)
    assert "EVERYTHING READ BEFORE THE CHECKPOINT IS READ AGAIN" in result.output
    assert_seen(result, oracle, range(1, 2))


@pytest.mark.usefixtures("begun")
def test_an_edit_of_the_past_is_refused_and_one_ahead_is_accepted(train, data, dataset):
    changed = {**dataset, "datasets": {**dataset["datasets"], "math": {**dataset["datasets"]["math"], "weight": 0.5}}}
    train("a", dataset=changed, resume=True, refused="phases.0.weights.math: saved 1/10, now 5/14")
    ahead = {"web": 0.2, "code": 0.8}
    edited = {**dataset, "phases": [{"at": 30, "weights": ahead}], "skip": [{"at": 26, "count": 2}]}
    result = train("b", dataset=edited, micro_batches=4, resume=True)
    oracle = of_segments(data, cl.Segment(at=30, weights=ahead), cl.Segment(at=26, skip=2))
    assert_seen(result, oracle, range(4, 7))


@pytest.mark.usefixtures("begun")
def test_a_second_data_stage(train, data, dataset):
    """Other weights, a dataset less: nothing is read again, and nothing is left out in any dataset's order."""
    weights = {"web": 0.3, "math": 0.7}
    second = {**dataset, "datasets": {n: {"path": str(data[n]), "weight": w} for n, w in weights.items()}}
    stages = [
        {"name": "first", "start_training_step": 1, "data": support.data(dataset)},
        {"name": "second", "start_training_step": 4, "data": support.data(second)},
    ]
    more = {"stages": stages, "dp": 2, "interval": 2, "resume": True}
    result = train("a", steps=7, **more)
    oracle = of_segments(data, cl.Segment(at=24, weights=weights))
    assert_seen(result, oracle, range(4, 8))
    assert len(set(oracle.samples(range(56)))) == 56
    for name in oracle.names:
        draws = [g for g in range(56) if oracle.samples([g])[0][0] == name]
        assert oracle.mixture.locate_many(draws)[1].tolist() == list(range(len(draws)))
    again = train("b", steps=7, **more)  # its own resume, from step 6
    assert_seen(again, oracle, range(7, 8))
    assert again.losses() == result.losses(7)
    assert "data stage" not in again.output.replace("data stages", "")
    stages[0] = {**stages[0], "data": support.data(second)}
    said = train("c", steps=8, **more).output
    assert said.count("data stage 'first' was trained with other settings than it has now (datasets)") == 1


def test_losses_of_packs_are_those_of_a_loop_by_hand(train, tmp_path, dataset):
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
    result = train("t", dataset=packed, model="qwen2", steps=3, save_initial_state=True)
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
BOOKS = {"books": 0.7, "pages": 0.3}


def nanosets(folder, tokenizer="gpt2"):
    """nanotron's own section over .ds files that are too large to be read whole when they are adopted."""
    rng = np.random.default_rng(0)
    for name in BOOKS:
        (folder / name).mkdir(parents=True)
        documents = [rng.integers(1, support.VOCABULARY, n).tolist() for n in rng.integers(20, 90, 400)]
        write_datatrove(folder / name, "00000.ds", documents, tokenizer=tokenizer)
    return {"dataset_folder": [str(folder / n) for n in BOOKS], "dataset_weights": [*BOOKS.values()]}


def of_nanosets(folder, checkpoints):
    """Where a run has adopted them, and what it is to read."""
    used = logged_config(checkpoints)["datasets"]
    places = {name: Path(used[name]["path"]) for name in BOOKS}
    return places, Oracle(places, BOOKS, support.SEQ_LEN, roots=[folder / name for name in BOOKS])


def test_a_dataset_folder_as_it_is(train, tmp_path, capsys):
    """nanotron's own section, without a step: read by us where it is; resumed as any run, but not at another pp.

    Checkpoints are uploaded, and removed with all folders beside them; the files of the corpus are touched.
    """
    section = nanosets(tmp_path)
    checkpoints, s5cmd = tmp_path / "c", tmp_path / "s5cmd"
    s5cmd.write_text(S5CMD.format(to=str(tmp_path / "bucket")))
    s5cmd.chmod(0o755)
    upload = {"upload_s3_path": "s3://bucket/run", "remove_after_upload": True, "s5cmd_path": str(s5cmd)}
    upload |= {"s5cmd_numworkers": 1, "s5cmd_concurrency": 1}
    first = train("a", dataset=section, pp=2, steps=4, changes={"s3_upload": upload})
    assert "data_stages[0]: its dataset_folder is read by conceptloader" in first.output
    assert not (checkpoints / "3").exists()
    places, oracle = of_nanosets(tmp_path, checkpoints)
    assert [(place / "manifest.json").exists() for place in places.values()] == [True, True]
    assert main(["trace", "--run-log", str(checkpoints), "--step", "3"]) == 0
    assert "books" in capsys.readouterr().out
    assert_seen(first, oracle, range(1, 5))
    shutil.copytree(tmp_path / "bucket" / "3", checkpoints / "3")
    for name in BOOKS:
        os.utime(tmp_path / name / "00000.ds", ns=(1, 1))
    train("b", dataset=section, resume=True, refused="parallelism.pp: found 1, expected 2, at which")
    assert_seen(train("r", dataset=section, pp=2, resume=True), oracle, range(4, 7))


def test_a_run_that_nanoset_began(train, tmp_path):
    """By the stock loader, which wants s3 in its paths, and a tokenizer. Both counts by dataset are said."""
    words = {f"w{n}": n for n in range(support.VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), eos_token="w2")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    named = {"vocab_size": support.VOCABULARY, "tokenizer_name": str(tmp_path / "tokenizer"), "token_size_in_bytes": 2}
    section = nanosets(tmp_path / "s3", named["tokenizer_name"]) | named
    changes = {"model.make_vocab_size_divisible_by": 1}
    changes["tokenizer"] = {"tokenizer_name_or_path": named["tokenizer_name"]}
    train("a", dataset=section, changes=changes, steps=3, launch=None)
    assert not (tmp_path / "c" / "3" / "conceptloader.json").exists()
    accepted = {**section, "nanotron": {"allow_changed": ["unverified"]}}
    ours = train("b", dataset=accepted, changes=changes, steps=5, resume=True)
    _, oracle = of_nanosets(tmp_path / "s3", tmp_path / "c")
    assert_seen(ours, oracle, range(4, 6))
    with_ours = Counter(name for name, _, _ in oracle.samples(range(12)))
    with_theirs = {str(tmp_path / "s3" / name): count for name, count in (("books", 8), ("pages", 4))}
    for counts in (with_ours, with_theirs):
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        assert f"({listed})" in ours.output


def test_weights_that_are_set_while_the_run_is_going(train, data):
    """In step 3, from step 4 on, and in the run that is resumed, which sets none."""
    oracle = of_segments(data, cl.Segment(at=24, weights={"math": 1, "code": 1}))
    first = train("a", dp=2, interval=4, launch=["--import", "sets_weights"], path=Path(__file__).parent)
    assert_seen(first, oracle, range(1, 7))
    lines = [json.loads(line.split("METRICS ")[1]) for line in first.output.splitlines() if "METRICS " in line]
    assert [(one["step"], one["consumed_samples"]) for one in lines] == [(step, 8 * step + 8) for step in range(6)]
    assert [one["weights"].get("web", 0) for one in lines] == [0.6, 0.6, 0.6, 0, 0, 0]
    assert all(0 < one["waited_seconds"] <= one["seconds"] for one in lines)
    again = train("b", dp=2, steps=7, resume=True)
    assert_seen(again, oracle, range(5, 8))
    assert again.losses(5)[5] == first.losses()[5]


def test_documents_of_a_spike(train, tmp_path, monkeypatch, capsys):
    """By the commands of the page, from losses of samples whose mean is the loss of each step."""
    dataset = {"type": "conceptloader", **spike.write_corpus(tmp_path / "data", monkeypatch)}
    data = {**support.data(dataset), "seed": dataset.pop("seed")}
    stages = [{"name": "first", "start_training_step": 1, "data": data}]
    scheduler = "optimizer.learning_rate_scheduler"
    changes = {f"{scheduler}.{name}": 0.03 for name in ("learning_rate", "min_decay_lr")}
    changes["model.model_config.vocab_size"] = 257
    more = {"stages": stages, "dp": 2, "steps": spike.STEPS, "micro_batch": 4, "interval": 100}
    printed = train("run", checkpoints=Path("checkpoints").resolve(), changes=changes, **more).losses()
    means = "select step + 1 as step, sum(loss) / sum(tokens) as mean from losses group by all"
    rows = query(open_run(log="checkpoints"), means, steps=(0, spike.STEPS)).to_pylist()
    assert {row["step"]: row["mean"] for row in rows} == pytest.approx(printed, rel=1e-5)
    spike.find_documents(capsys)
