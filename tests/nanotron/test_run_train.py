"""The unmodified run_train.py of nanotron main, on CPU: layouts, death and resume. Needs NANOTRON_SRC."""

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from conceptloader.cli import main
from conceptloader.integrations.nanotron_lm.state import State
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.token_files import write_datatrove
from tests.nanotron import support
from tests.nanotron.by_hand import losses
from tests.nanotron.conftest import WEIGHTS
from tests.nanotron.plan import Layout, Oracle, assert_seen

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(900), pytest.mark.slow]

LAYOUTS = {
    "dp2": (Layout(dp=2), {}),
    "pp2": (Layout(pp=2), {}),
    "pp3": (Layout(pp=3), {"layers": 4}),
    "tp2": (Layout(tp=2), {}),
    "cp2": (Layout(cp=2), {"model": "qwen2"}),
    "dp2xpp2": (Layout(dp=2, pp=2), {"workers": 1}),
}


@pytest.fixture(scope="module")
def oracle(data: dict[str, Path]) -> Oracle:
    return Oracle(data, WEIGHTS, support.SEQ_LEN)


@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_and_resumed(name: str, tmp_path: Path, dataset: dict[str, Any], oracle: Oracle) -> None:
    """Ranks see their parts of the plan; a run killed in step 5 goes on from step 3 samples and losses equal."""
    layout, extra = LAYOUTS[name]
    shape = {"dp": layout.dp, "pp": layout.pp, "cp": layout.cp, "tp": layout.tp, **extra}
    first = 1
    resume = False
    if layout.cp > 1:  # nanotron cannot initialize a model under context parallelism
        begin = support.config(tmp_path / "whole", dataset, steps=1, interval=1, **{**shape, "cp": 1})
        assert support.run_train(tmp_path / "begin", begin).returncode == 0
        support.copy_checkpoint(tmp_path / "whole", 1, tmp_path / "killed")
        first, resume = 2, True
    plan = {"micro_batch": 2, "micro_batches": 2}
    batch = 4 * layout.dp

    whole = support.run_train(tmp_path / "w", support.config(tmp_path / "whole", dataset, resume=resume, **shape))
    assert whole.returncode == 0, whole.output[-4000:]
    assert_seen(whole, oracle, layout, range(first, 7), start=(first - 1) * batch, **plan)

    config = support.config(tmp_path / "killed", dataset, resume=resume, **shape)
    killed = support.run_train(tmp_path / "k", config, kill=(0, 5))
    assert killed.returncode != 0
    assert killed.losses(first) == {step: loss for step, loss in whole.losses().items() if step <= max(killed.losses())}

    resumed = support.run_train(tmp_path / "r", support.config(tmp_path / "killed", dataset, resume=True, **shape))
    assert resumed.returncode == 0, resumed.output[-4000:]
    assert_seen(resumed, oracle, layout, range(4, 7), start=3 * batch, **plan)
    assert resumed.losses() == whole.losses(4)
    if layout.tp > 1:
        config = support.config(tmp_path / "killed", dataset, resume=True, **{**shape, "tp": 1})
        refused = support.run_train(tmp_path / "o", config)
        assert refused.returncode != 0
        assert "parallelism.tp: found 1, but" in refused.output
        assert "nanotron cannot load its learning rate scheduler at another; set tp to 2" in refused.output


def test_restarted_within_the_process(
    tmp_path: Path, dataset: dict[str, Any], oracle: Oracle, trained: tuple[Path, support.Result]
) -> None:
    """Before a checkpoint and behind one: samples, losses and the state in later checkpoints as if nothing had been."""
    config = support.config(tmp_path / "c", dataset, dp=2, resume=True)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    script = str(Path(os.environ["NANOTRON_SRC"]) / "run_train.py")
    restarts = str(Path(__file__).with_name("restarts.py"))
    args = ["-m", "conceptloader.launch", restarts, script, "config.yaml"]
    result = support.torchrun(tmp_path, 2, args)
    assert (result.returncode, result.output.count("RESTARTS")) == (0, 4), result.output[-4000:]
    assert_seen(result, oracle, Layout(dp=2), range(1, 7), micro_batch=2, micro_batches=2, start=0)
    assert result.losses() == trained[1].losses()
    for step in ("3", "6"):
        assert State.read(tmp_path / "c" / step) == State.read(trained[0] / step)
    assert [start.step for start in RunLog(tmp_path / "c").starts] == [0, 0, 3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: dict[str, Any]) -> tuple[Path, support.Result]:
    """Checkpoints of steps 3 and 6 of a run with dp 2 and batches of 8, and what it computed."""
    folder = tmp_path_factory.mktemp("trained")
    result = support.run_train(folder / "run", support.config(folder / "checkpoints", dataset, dp=2))
    assert result.returncode == 0, result.output[-4000:]
    return folder / "checkpoints", result


@pytest.fixture
def checkpoints(tmp_path: Path, trained: tuple[Path, support.Result]) -> Path:
    """A copy of the checkpoint of step 3."""
    support.copy_checkpoint(trained[0], 3, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_one_rank_instead_of_two(
    tmp_path: Path, checkpoints: Path, dataset: dict[str, Any], oracle: Oracle, trained: tuple[Path, support.Result]
) -> None:
    config = support.config(checkpoints, dataset, micro_batches=4, resume=True)
    result = support.run_train(tmp_path, config)
    assert result.returncode == 0, result.output[-4000:]
    assert_seen(result, oracle, Layout(), range(4, 7), micro_batch=2, micro_batches=4, start=24)
    assert result.losses() == pytest.approx(trained[1].losses(4), rel=1e-6)


def test_another_global_batch(tmp_path: Path, checkpoints: Path, dataset: dict[str, Any], oracle: Oracle) -> None:
    """Also a smaller one, with which nanotron believes that fewer samples are left than were consumed."""
    result = support.run_train(
        tmp_path, support.config(checkpoints, dataset, micro_batch=3, micro_batches=1, resume=True)
    )
    assert result.returncode == 0, result.output[-4000:]
    assert_seen(result, oracle, Layout(), range(4, 7), micro_batch=3, micro_batches=1, start=24)


def test_a_changed_past_is_refused(tmp_path: Path, checkpoints: Path, dataset: dict[str, Any]) -> None:
    changed = {**dataset, "datasets": {**dataset["datasets"], "math": {**dataset["datasets"]["math"], "weight": 0.5}}}
    result = support.run_train(tmp_path, support.config(checkpoints, changed, resume=True))
    assert result.returncode != 0
    assert "phases.0.weights.math: saved 1/10, now 5/14" in result.output

    allowed = {**changed, "nanotron": {"allow_changed": ["phases.0.weights"]}}
    result = support.run_train(tmp_path, support.config(checkpoints, allowed, resume=True, steps=4))
    assert result.returncode == 0, result.output[-4000:]
    assert "resuming with a changed past, as allowed: phases.0.weights.math: saved 1/10, now 5/14" in result.output


def test_an_edit_ahead_is_accepted(
    tmp_path: Path, checkpoints: Path, data: dict[str, Path], dataset: dict[str, Any]
) -> None:
    ahead = {"web": 0.2, "code": 0.8}
    edited = {**dataset, "phases": [{"start": 30, "weights": ahead}], "skip": [{"at": 26, "count": 2}]}
    result = support.run_train(tmp_path, support.config(checkpoints, edited, micro_batches=4, resume=True))
    assert result.returncode == 0, result.output[-4000:]
    import conceptloader as cl

    phases, skips = [cl.Phase(start=30, weights=ahead)], [cl.Skip(at=26, count=2)]
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, phases=phases, skips=skips)
    assert_seen(result, oracle, Layout(), range(4, 7), micro_batch=2, micro_batches=4, start=24)


def test_a_second_data_stage(tmp_path: Path, checkpoints: Path, data: dict[str, Path], dataset: dict[str, Any]) -> None:
    """Other weights, a dataset less: nothing is read again, and nothing is left out in any dataset's order."""
    weights = {"web": 0.3, "math": 0.7}
    second = {**dataset, "datasets": {n: {"path": str(data[n]), "weight": w} for n, w in weights.items()}}
    stages = [
        {"name": "first", "start_training_step": 1, "data": support.data(dataset)},
        {"name": "second", "start_training_step": 4, "data": support.data(second)},
    ]
    result = support.run_train(
        tmp_path / "a", support.config(checkpoints, stages=stages, dp=2, interval=2, steps=7, resume=True)
    )
    assert result.returncode == 0, result.output[-4000:]
    import conceptloader as cl

    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, phases=[cl.Phase(start=24, weights=weights)])
    assert_seen(result, oracle, Layout(dp=2), range(4, 8), micro_batch=2, micro_batches=2, start=24)
    read = sorted(oracle.samples(range(56)))
    assert len(set(read)) == 56
    for name in oracle.names:
        draws = [g for g in range(56) if oracle.samples([g])[0][0] == name]
        assert oracle.mixture.locate_many(draws)[1].tolist() == list(range(len(draws)))

    # and its own resume, from step 6
    again = support.run_train(
        tmp_path / "b", support.config(checkpoints, stages=stages, dp=2, interval=2, steps=7, resume=True)
    )
    assert again.returncode == 0, again.output[-4000:]
    assert_seen(again, oracle, Layout(dp=2), range(7, 8), micro_batch=2, micro_batches=2, start=48)
    assert again.losses() == result.losses(7)


def test_losses_of_packs_are_those_of_a_loop_by_hand(tmp_path: Path, dataset: dict[str, Any]) -> None:
    """Qwen2, in whose attention no document sees another, for steps of AdamW."""
    packed = {**dataset, "packing": {"bins": 4}}
    config = support.config(tmp_path / "c", packed, model="qwen2", steps=3, save_initial_state=True)
    result = support.run_train(tmp_path / "t", config)
    assert result.returncode == 0, result.output[-4000:]
    plain = {key: value for key, value in packed.items() if key != "type"}
    by_hand = losses(
        tmp_path / "c" / "0", {**plain, "seed": 42, "seq_len": support.SEQ_LEN}, 2, packed=True, interleaved=False
    )
    assert result.losses() == pytest.approx({step: next(by_hand) for step in (1, 2, 3)}, rel=1e-5)


def test_a_quarantined_micro_batch_gives_no_loss(tmp_path: Path, dataset: dict[str, Any], oracle: Oracle) -> None:
    """The order stays, the mask is empty, the loss is 0 and not NaN."""
    name, _, window = oracle.samples([5])[0]
    first = window * support.SEQ_LEN + 1
    quarantined = {**dataset, "quarantine": [{"dataset": name, "tokens": [first, first + 1]}]}
    config = support.config(tmp_path / "c", quarantined, micro_batch=1, micro_batches=4, steps=2)
    result = support.run_train(tmp_path, config)
    assert result.returncode == 0, result.output[-4000:]
    batches = [batch for step in (1, 2) for batch in result.steps[0][step]["batches"]]
    assert [not any(batch["label_mask"][0]) for batch in batches] == [sample == 5 for sample in range(8)]
    outputs = [output["loss"] for step in (1, 2) for output in result.steps[0][step]["outputs"]]
    assert [loss == 0 for loss in outputs] == [sample == 5 for sample in range(8)]


def test_forgotten_counters_are_told(
    tmp_path: Path, checkpoints: Path, dataset: dict[str, Any], oracle: Oracle
) -> None:
    config = support.config(checkpoints, dataset, dp=2, steps=1, resume=True, load_lr_scheduler=False)
    result = support.run_train(tmp_path, config)
    assert result.returncode == 0, result.output[-4000:]
    assert "EVERYTHING READ BEFORE THE CHECKPOINT IS READ AGAIN" in result.output
    assert_seen(result, oracle, replace(Layout(), dp=2), range(1, 2), micro_batch=2, micro_batches=2, start=0)


S5CMD = """#!/usr/bin/env python
import json, os, shutil, sys
for folder, _, names in os.walk(sys.argv[-2]):
    for name in names:
        to = os.path.join({to!r}, os.path.relpath(folder, sys.argv[-2]), name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(os.path.join(folder, name), to)
        print(json.dumps({{"success": True, "object": {{"size": 1}}}}))
"""


def nanosets(folder: Path, weights: dict[str, float], tokenizer: str = "gpt2") -> dict[str, Any]:
    """nanotron's own section over .ds files that are too large to be read whole when they are adopted."""
    rng = np.random.default_rng(0)
    for name in weights:
        (folder / name).mkdir(parents=True)
        documents = [rng.integers(1, support.VOCABULARY, n).tolist() for n in rng.integers(20, 90, 400)]
        write_datatrove(folder / name, "00000.ds", documents, tokenizer=tokenizer)
    return {"dataset_folder": [str(folder / n) for n in weights], "dataset_weights": [*weights.values()]}


def test_a_dataset_folder_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    first = support.run_train(tmp_path / "a", {**config, "s3_upload": upload})
    assert first.returncode == 0, first.output[-4000:]
    assert "data_stages[0]: its dataset_folder is read by conceptloader" in first.output
    assert not (checkpoints / "3").exists()
    used = yaml.safe_load((checkpoints / "conceptloader.yaml").read_text())["datasets"]
    places = {name: Path(used[name]["path"]) for name in weights}
    assert [(place / "manifest.json").exists() for place in places.values()] == [True, True]
    assert main(["trace", str(checkpoints / "conceptloader.yaml"), "--log", str(checkpoints), "--step", "3"]) == 0
    assert "books" in capsys.readouterr().out
    oracle = Oracle(places, weights, support.SEQ_LEN, roots=[tmp_path / name for name in weights])
    assert_seen(first, oracle, Layout(pp=2), range(1, 5), micro_batch=2, micro_batches=2, start=0)
    shutil.copytree(tmp_path / "bucket" / "3", checkpoints / "3")
    for name in weights:
        os.utime(tmp_path / name / "00000.ds", ns=(1, 1))
    refused = support.run_train(tmp_path / "b", support.config(checkpoints, section, resume=True))
    assert refused.returncode != 0
    assert "parallelism.pp: found 1, but" in refused.output
    assert "was written at 2" in refused.output
    again = support.run_train(tmp_path / "r", support.config(checkpoints, section, pp=2, resume=True))
    assert again.returncode == 0, again.output[-4000:]
    assert_seen(again, oracle, Layout(pp=2), range(4, 7), micro_batch=2, micro_batches=2, start=12)


def test_a_run_that_nanoset_began(tmp_path: Path) -> None:
    """By the stock loader, which wants s3 in its paths, and a tokenizer. Both counts by dataset are said."""
    weights = {"books": 0.7, "pages": 0.3}
    words = {f"w{n}": n for n in range(support.VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), eos_token="w2")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    named = {"vocab_size": support.VOCABULARY, "tokenizer_name": str(tmp_path / "tokenizer"), "token_size_in_bytes": 2}
    section = nanosets(tmp_path / "s3", weights, named["tokenizer_name"]) | named

    def config(section: dict[str, Any], **options: Any) -> dict[str, Any]:
        whole = support.config(tmp_path / "c", section, **options)
        whole["model"]["make_vocab_size_divisible_by"] = 1
        return {**whole, "tokenizer": {"tokenizer_name_or_path": str(tmp_path / "tokenizer")}}

    begun = support.run_train(tmp_path / "a", config(section, steps=3), launch=None)
    assert begun.returncode == 0, begun.output[-4000:]
    assert not (tmp_path / "c" / "3" / "conceptloader.json").exists()
    accepted = {**section, "nanotron": {"allow_changed": ["unverified"]}}
    ours = support.run_train(tmp_path / "b", config(accepted, steps=5, resume=True))
    assert ours.returncode == 0, ours.output[-4000:]
    used = yaml.safe_load((tmp_path / "c" / "conceptloader.yaml").read_text())["datasets"]
    places = {name: Path(used[name]["path"]) for name in weights}
    oracle = Oracle(places, weights, support.SEQ_LEN, roots=[tmp_path / "s3" / name for name in weights])
    assert_seen(ours, oracle, Layout(), range(4, 6), micro_batch=2, micro_batches=2, start=12)
    with_ours = Counter(name for name, _, _ in oracle.samples(range(12)))
    with_theirs = {str(tmp_path / "s3" / name): count for name, count in (("books", 8), ("pages", 4))}
    for counts in (with_ours, with_theirs):
        listed = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        assert f"({listed})" in ours.output


def test_weights_that_are_set_while_the_run_is_going(
    tmp_path: Path, data: dict[str, Path], dataset: dict[str, Any]
) -> None:
    """In step 3, from step 4 on, and in the run that is resumed, which sets none."""
    import conceptloader as cl

    checkpoints, weights = tmp_path / "c", {"math": 1, "code": 1}
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN, phases=[cl.Phase(start=24, weights=weights)])
    plan = {"micro_batch": 2, "micro_batches": 2}
    config = support.config(checkpoints, dataset, dp=2, interval=4)
    first = support.run_train(tmp_path / "a", config, launch=["--import", "sets_weights"], path=Path(__file__).parent)
    assert first.returncode == 0, first.output[-4000:]
    assert_seen(first, oracle, Layout(dp=2), range(1, 7), start=0, **plan)
    lines = [json.loads(line.split("METRICS ")[1]) for line in first.output.splitlines() if "METRICS " in line]
    assert [(one["step"], one["consumed_samples"]) for one in lines] == [(step, 8 * step + 8) for step in range(6)]
    assert [one["weights"].get("web", 0) for one in lines] == [0.6, 0.6, 0.6, 0, 0, 0]
    assert all(0 < one["waited_seconds"] <= one["seconds"] for one in lines)
    again = support.run_train(tmp_path / "b", support.config(checkpoints, dataset, dp=2, steps=7, resume=True))
    assert again.returncode == 0, again.output[-4000:]
    assert_seen(again, oracle, Layout(dp=2), range(5, 8), start=32, **plan)
    assert again.losses(5)[5] == first.losses()[5]
