"""Unmodified pretrain_gpt.py of Megatron-LM checkouts (MEGATRON_SRC): loaders, evaluation, skips, take-over."""

from pathlib import Path

import pytest
import yaml

from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config, write_datasets
from tests.corpora.token_files import random_corpus
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
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(write_datasets(tmp_path_factory.mktemp("data")) / "data.yaml")


@each_checkout
def test_full_validation(checkout: Path, config: Path, tmp_path: Path) -> None:
    """Every dataset is a validation set. Megatron's evaluation fails with --full-validation alone."""
    more = ["--split", "80,20,0", "--full-validation", "--multiple-validation-sets", "--eval-interval", "8"]
    run = ended(pretrain(checkout, tmp_path / "run", DP2, *more, config=config))
    assert run.output.count("validation loss at iteration 8") + run.output.count("loss at iteration 8") >= 2


@each_checkout
def test_iterations_to_skip(checkout: Path, config: Path, tmp_path: Path) -> None:
    """Megatron reads the samples of a skipped iteration and leaves them out; the others stay where they were."""
    run = ended(pretrain(checkout, tmp_path / "run", ALONE, "--iterations-to-skip", "3", config=config))
    assert run.samples(0) == ALONE.planned(0)
    assert len(run.losses) == STEPS - 1


@each_checkout
def test_phase_transition(checkout: Path, config: Path, tmp_path: Path) -> None:
    """Megatron counts samples anew from the transition; ours go on."""
    batch = ("--global-batch-size", str(BATCH), "--train-samples", str(STEPS * BATCH))
    more = ["--phase-transition-iterations", str(SAVED), *saving(tmp_path / "a")]
    first = ended(pretrain(checkout, tmp_path / "first", ALONE, *more, config=config, batch=batch))
    rest = ended(pretrain(checkout, tmp_path / "rest", ALONE, *more, config=config, batch=batch))
    assert first.samples(0) + rest.samples(0) == ALONE.planned(0)


@each_checkout
def test_mock_data_with_data(checkout: Path, config: Path, tmp_path: Path) -> None:
    """It would train on random tokens, and the configuration would have no effect."""
    both = pretrain(checkout, tmp_path / "both", ALONE, "--mock-data", config=config)
    assert both.returncode != 0
    assert "--mock-data: found with conceptloader's data" in both.output


@each_checkout
def test_taking_over_a_run(checkout: Path, tmp_path: Path) -> None:
    """Megatron's own loader trains to a checkpoint; the launcher goes on from it with the same samples."""
    names = ("code", "web")
    words = []
    for seed, (name, weight) in enumerate(zip(names, ("0.3", "0.7"), strict=True)):
        words += [weight, random_corpus(tmp_path / f"{name}_text", seed, documents=200, longest=90)]
        adopt([words[-1]], tmp_path / name)
    config = tmp_path / "data.yaml"
    datasets = {name: {"path": name} for name in names}
    config.write_text(yaml.safe_dump({"order": "megatron", "megatron_cache": "cache", "datasets": datasets}))
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
def test_in_place_and_then_longer(checkout: Path, tmp_path: Path) -> None:
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


@each_checkout
def test_inter_document_masking(checkout: Path, tmp_path: Path) -> None:
    """core_v0.16.1 has no such option."""
    script = [str(ROOT / "tests/megatron/check_inter_document.py"), str(tmp_path)]
    run = ended(torchrun(script, tmp_path / "run", processes=1, checkout=checkout))
    has_option = "inter_document_masking" in (checkout / "megatron/core/datasets/gpt_dataset.py").read_text()
    assert run.output.splitlines()[-1] == ("equal" if has_option else "absent")


@each_checkout
def test_packs_sft_and_fill_in_the_middle(checkout: Path, tmp_path: Path) -> None:
    """core_v0.16.1 has not got the packed sequences."""
    script = [str(ROOT / "tests/megatron/check_packs.py"), str(tmp_path)]
    run = ended(torchrun(script, tmp_path / "run", processes=1, checkout=checkout))
    has_option = "inter_document_masking" in (checkout / "megatron/core/datasets/gpt_dataset.py").read_text()
    assert run.output.splitlines()[-1] == ("equal" if has_option else "absent")
