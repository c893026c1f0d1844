"""Unmodified pretrain_gpt.py of Megatron-LM checkouts (MEGATRON_SRC): loaders, evaluation, skips, take-over."""

import re
from functools import partial

import numpy as np
import pytest
import yaml

from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config, write_datasets
from tests.corpora.token_files import random_corpus, write_corpus
from tests.megatron.launching import ROOT, torchrun
from tests.megatron.pretraining import (
    ALONE,
    BATCH,
    DP2,
    SAVED,
    STEPS,
    each_checkout,
    ended,
    needs_checkout,
    pretrain,
    same_losses,
    saving,
)

pytestmark = needs_checkout


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(write_datasets(tmp_path_factory.mktemp("data")) / "data.yaml")


@each_checkout
def test_validation_losses_bear_their_names(checkout, tmp_path):
    """As under Megatron's own loader: one document each, so that both have the same 8 windows, and no learning."""
    paths = {}
    for name, low in (("web", 0), ("code", 100)):
        document = np.random.default_rng(low).integers(low, low + 20, 64 * 8).tolist()
        paths[name] = write_corpus(tmp_path / f"{name}_text", [[*document, 255]])
        adopt([paths[name]], tmp_path / name)
    has_names = "validation_set_names" in (checkout / "megatron/training/training.py").read_text()
    more = ["--full-validation", "--multiple-validation-sets", "--eval-interval", "2", "--lr", "1e-9"]
    more += ["--validation-set-names", "web", "code"] if has_names else []
    given = ["--train-data-path", paths["code"], "--valid-data-path", *paths.values()]
    train, valid = (write_config(tmp_path / f"{k}.yaml", tracks={}) for k in ("train", "valid"))
    write_config(valid, tracks={}, datasets={name: {"path": name, "weight": 1} for name in paths})
    batch = ("--global-batch-size", str(BATCH), "--train-iters", "2")
    train_on = partial(pretrain, checkout, batch=batch)
    cache = ["--data-cache-path", str(tmp_path / "cache")]
    runs = [
        train_on(tmp_path / "stock", ALONE, *more, *given, *cache),
        train_on(tmp_path / "in_place", ALONE, *more, *given, *cache, in_place=True),
        train_on(tmp_path / "yaml", ALONE, *more, "--conceptloader-valid-config", str(valid), config=train),
    ]
    found = [re.findall(r"validation-(\S+) loss at iteration 2 \|.*?value: (\S+)", ended(run).output) for run in runs]
    assert [name for name, _ in found[0]] == (["web", "code"] if has_names else ["0", "1"])
    (web, code), *ours = [[float(loss) for _, loss in losses] for losses in found]
    assert abs(web - code) > 1e-4
    for losses in ours:
        assert losses == pytest.approx([web, code], rel=1e-6)


@each_checkout
def test_runs_end_with_their_last_step(checkout, config, tmp_path):
    """Megatron sizes data for batches of one size, and takes what its index files hold beyond that."""
    train = partial(pretrain, checkout)
    larger, smaller = (("--global-batch-size", size, "--train-iters", "6") for size in ("16", "8"))
    more = [*saving(tmp_path / "a"), "--override-opt-param-scheduler", "--split", "80,20,0", "--eval-iters", "1"]
    stop = ["--exit-interval", "4"]
    ended(train(tmp_path / "larger", ALONE, *more, *stop, "--eval-interval", "1", config=config, batch=larger))
    rest = ended(train(tmp_path / "smaller", ALONE, *more, "--eval-interval", "4", config=config, batch=smaller))
    taken = [row for row in rest.samples(0) if row[0] >= 64]
    assert taken[: 2 * 4] == [[k, k + 1] for k in range(64, 80, 2)]
    assert max(rest.losses) == 6
    assert not ended(train(tmp_path / "again", ALONE, *more, config=config, batch=smaller)).losses

    if "step_batch_size_schedule" in (checkout / "megatron/core/num_microbatches_calculator.py").read_text():
        data = ["--data-path", random_corpus(tmp_path / "web_text", 0, documents=300, longest=90), "--split", "1,0,0"]
        data += ["--data-cache-path", str(tmp_path / "cache")]
        batch = ("--step-batch-size-schedule", f"0:8 {32 * 64}:16", "--train-samples", "72")
        whole = ended(train(tmp_path / "whole", ALONE, *data, batch=batch))
        ended(train(tmp_path / "first", ALONE, *data, *saving(tmp_path / "b"), *stop, batch=batch))
        resumed = ended(train(tmp_path / "rest", ALONE, *data, *saving(tmp_path / "b"), batch=batch, in_place=True))
        assert max(whole.losses) == 7
        same_losses(resumed, whole)


@each_checkout
def test_iterations_to_skip(checkout, config, tmp_path):
    """Megatron reads the samples of a skipped iteration and leaves them out; the others stay where they were."""
    run = ended(pretrain(checkout, tmp_path / "run", ALONE, "--iterations-to-skip", "3", config=config))
    assert run.samples(0) == ALONE.planned(0)
    assert len(run.losses) == STEPS - 1


@each_checkout
def test_phase_transition(checkout, config, tmp_path):
    """Megatron counts samples anew from the transition; ours go on."""
    batch = ("--global-batch-size", str(BATCH), "--train-samples", str(STEPS * BATCH))
    more = ["--phase-transition-iterations", str(SAVED), *saving(tmp_path / "a")]
    first = ended(pretrain(checkout, tmp_path / "first", ALONE, *more, config=config, batch=batch))
    rest = ended(pretrain(checkout, tmp_path / "rest", ALONE, *more, config=config, batch=batch))
    assert first.samples(0) + rest.samples(0) == ALONE.planned(0)


@each_checkout
def test_taking_over_a_run(checkout, tmp_path):
    """Megatron's own loader trains to a checkpoint; the launcher goes on from it with the same samples."""
    names = ("code", "web")
    words = []
    for seed, (name, weight) in enumerate(zip(names, ("0.3", "0.7"), strict=True)):
        words += [weight, random_corpus(tmp_path / f"{name}_text", seed, documents=200, longest=90)]
        adopt([words[-1]], tmp_path / name)
    config = tmp_path / "data.yaml"
    datasets = {name: {"path": name} for name in names}
    config.write_text(yaml.safe_dump({"order": {"megatron": "cache"}, "datasets": datasets}))
    data = ["--data-path", *words, "--split", "1,0,0", "--data-cache-path", str(tmp_path / "cache")]
    whole = ended(pretrain(checkout, tmp_path / "whole", DP2, *data))
    stopped = [*saving(tmp_path / "a"), "--exit-interval", str(SAVED)]
    ended(pretrain(checkout, tmp_path / "first", DP2, *data, *stopped))
    resumed = ended(pretrain(checkout, tmp_path / "rest", DP2, *data, *saving(tmp_path / "a"), config=config))
    same_losses(resumed, whole)
    assert resumed.samples(0) == DP2.planned(0, SAVED)
    log = RunLog(tmp_path / "a")
    assert log.spec(log.starts[-1]).order == "megatron"
    assert log.starts[-1].consumed == SAVED * BATCH


@each_checkout
def test_in_place_and_then_longer(checkout, tmp_path):
    """The same command behind the launcher, no YAML, nothing adopted: Megatron's run goes on, then beyond its end."""
    words = []
    for seed, weight in enumerate(("0.3", "0.7")):
        words += [weight, random_corpus(tmp_path / f"{seed}_text", seed, documents=200, longest=90)]
    data = ["--data-path", *words, "--split", "1,0,0", "--data-cache-path", str(tmp_path / "cache")]
    whole = ended(pretrain(checkout, tmp_path / "whole", DP2, *data))
    ended(pretrain(checkout, tmp_path / "first", DP2, *data, *saving(tmp_path / "a"), "--exit-interval", str(SAVED)))
    rest = ended(pretrain(checkout, tmp_path / "rest", DP2, *data, *saving(tmp_path / "a"), in_place=True))
    same_losses(rest, whole)
    longer = ("--global-batch-size", str(BATCH), "--train-iters", str(STEPS + SAVED), "--override-opt-param-scheduler")
    more = [*data, *saving(tmp_path / "a")]
    refused = pretrain(checkout, tmp_path / "refused", DP2, *more, batch=longer, in_place=True)
    assert refused.returncode != 0
    assert "--conceptloader-allow-changed order" in refused.errors
    more += ["--conceptloader-allow-changed", "order"]
    longer_run = ended(pretrain(checkout, tmp_path / "longer", DP2, *more, batch=longer, in_place=True))
    assert sorted(longer_run.losses) == list(range(STEPS + 1, STEPS + SAVED + 1))
    assert [start.consumed for start in RunLog(tmp_path / "a").starts] == [SAVED * BATCH, STEPS * BATCH]


@pytest.mark.parametrize("check", ["check_inter_document", "check_packs"])
@each_checkout
def test_documents_apart(checkout, tmp_path, check):
    """Masks between documents; packs and fine-tuning. core_v0.16.1 has not got them."""
    script = [str(ROOT / f"tests/megatron/{check}.py"), str(tmp_path)]
    run = ended(torchrun(script, tmp_path / "run", processes=1, checkout=checkout))
    has_option = "inter_document_masking" in (checkout / "megatron/core/datasets/gpt_dataset.py").read_text()
    assert run.output.splitlines()[-1] == ("equal" if has_option else "absent")
