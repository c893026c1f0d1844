"""Unmodified pretrain_gpt.py of Megatron-LM checkouts (MEGATRON_SRC): loaders, evaluation, skips, take-over."""

import re
from functools import partial

import numpy as np
import pytest
import yaml

from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.order.progress.runlog import RunLog
from tests.corpora.for_megatron import write_config
from tests.corpora.token_files import random_corpus, write_corpus
from tests.megatron.launching import ROOT, torchrun
from tests.megatron.pretraining import ALONE, BATCH, DP2, SAVED, STEPS, needs_checkout, of_steps, same_losses

pytestmark = needs_checkout
CALCULATOR = "core/num_microbatches_calculator.py"


def corpora(folder):
    """Prefixes of two of Megatron's own corpora, and its arguments about them."""
    prefixes = [random_corpus(folder / f"{k}_text", k, documents=200, longest=90) for k in range(2)]
    return prefixes, data_path(folder, "0.3", prefixes[0], "0.7", prefixes[1])


def data_path(folder, *words):
    return ["--data-path", *words, "--split", "1,0,0", "--data-cache-path", str(folder / "cache")]


def test_validation_losses_bear_their_names(pretrain, tmp_path):
    """As under Megatron's own loader: one document each, so that both have the same 8 windows, and no learning."""
    paths = {}
    for name, low in (("web", 0), ("code", 100)):
        document = np.random.default_rng(low).integers(low, low + 20, 64 * 8).tolist()
        paths[name] = write_corpus(tmp_path / f"{name}_text", [[*document, 255]])
        adopt([paths[name]], tmp_path / name)
    has_names = pretrain.has("validation_set_names", "training/training.py")
    more = ["--full-validation", "--multiple-validation-sets", "--eval-interval", "2", "--lr", "1e-9"]
    more += ["--validation-set-names", "web", "code"] if has_names else []
    given = ["--train-data-path", paths["code"], "--valid-data-path", *paths.values()]
    given += ["--data-cache-path", tmp_path / "cache"]
    config = write_config(tmp_path / "train.yaml", tracks={})
    datasets = {name: {"path": name, "weight": 1} for name in paths}
    valid = write_config(tmp_path / "valid.yaml", tracks={}, datasets=datasets)
    train = partial(pretrain, batch=of_steps(BATCH, 2))
    runs = [
        train("stock", ALONE, *more, *given),
        train("in_place", ALONE, *more, *given, in_place=True),
        train("yaml", ALONE, *more, "--conceptloader-valid-config", valid, config=config),
    ]
    found = [re.findall(r"validation-(\S+) loss at iteration 2 \|.*?value: (\S+)", run.output) for run in runs]
    assert [name for name, _ in found[0]] == (["web", "code"] if has_names else ["0", "1"])
    (web, code), *ours = [[float(loss) for _, loss in losses] for losses in found]
    assert abs(web - code) > 1e-4
    for losses in ours:
        assert losses == pytest.approx([web, code], rel=1e-6)


def test_runs_end_with_their_last_step(pretrain, config, tmp_path):
    """Megatron sizes data for batches of one size, and takes what its index files hold beyond that."""
    more = ["--override-opt-param-scheduler", "--split", "80,20,0", "--eval-iters", "1", "--eval-interval"]
    train = partial(pretrain, save="a", config=config)
    train("larger", ALONE, *more, "1", stop=4, batch=of_steps(16, 6))
    rest = train("smaller", ALONE, *more, "4", batch=of_steps(8, 6))
    taken = [row for row in rest.samples(0) if row[0] >= 64]
    assert taken[: 2 * 4] == [[k, k + 1] for k in range(64, 80, 2)]
    assert max(rest.losses) == 6
    assert not train("again", ALONE, *more, "1000", batch=of_steps(8, 6)).losses

    if pretrain.has("step_batch_size_schedule", CALCULATOR):
        data = data_path(tmp_path, random_corpus(tmp_path / "web_text", 0, documents=300, longest=90))
        batch = ("--step-batch-size-schedule", f"0:8 {32 * 64}:16", "--train-samples", "72")
        train = partial(pretrain, batch=batch)
        whole = train("whole", ALONE, *data)
        train("first", ALONE, *data, save="b", stop=4)
        resumed = train("rest", ALONE, *data, save="b", in_place=True)
        assert max(whole.losses) == 7
        same_losses(resumed, whole)


def test_iterations_to_skip(pretrain, config):
    """Megatron reads the samples of a skipped iteration and leaves them out; the others stay where they were."""
    run = pretrain("run", ALONE, "--iterations-to-skip", "3", config=config)
    assert run.samples(0) == ALONE.planned(0)
    assert len(run.losses) == STEPS - 1


def test_phase_transition(pretrain, config):
    """Megatron counts samples anew from the transition; ours go on."""
    batch = ("--global-batch-size", str(BATCH), "--train-samples", str(STEPS * BATCH))
    more = {"save": "a", "config": config, "batch": (*batch, "--phase-transition-iterations", str(SAVED))}
    runs = [pretrain(name, ALONE, **more) for name in ("first", "rest")]
    assert [row for run in runs for row in run.samples(0)] == ALONE.planned(0)


def test_taking_over_a_run(pretrain, tmp_path):
    """Megatron's own loader trains to a checkpoint; the launcher goes on from it with the same samples."""
    prefixes, data = corpora(tmp_path)
    for name, prefix in zip(("code", "web"), prefixes, strict=True):
        adopt([prefix], tmp_path / name)
    config = tmp_path / "data.yaml"
    datasets = {name: {"path": name} for name in ("code", "web")}
    config.write_text(yaml.safe_dump({"order": {"megatron": "cache"}, "datasets": datasets}))
    pretrain.resumed(DP2, *data, first={}, config=config)
    log = RunLog(tmp_path / "a")
    assert log.spec(log.starts[-1]).order == "megatron"
    assert log.starts[-1].consumed == SAVED * BATCH


def test_in_place_and_then_longer(pretrain, tmp_path):
    """The same command behind the launcher, no YAML, nothing adopted: Megatron's run goes on, then beyond its end."""
    _, data = corpora(tmp_path)
    pretrain.resumed(DP2, *data, first={}, in_place=True)
    data += ["--override-opt-param-scheduler"]
    longer = {"save": "a", "in_place": True, "batch": of_steps(BATCH, STEPS + SAVED)}
    pretrain("refused", DP2, *data, **longer, refused="--conceptloader-allow-changed order")
    run = pretrain("longer", DP2, *data, "--conceptloader-allow-changed", "order", **longer)
    assert sorted(run.losses) == list(range(STEPS + 1, STEPS + SAVED + 1))
    assert [start.consumed for start in RunLog(tmp_path / "a").starts] == [SAVED * BATCH, STEPS * BATCH]


@pytest.mark.parametrize("check", ["check_inter_document", "check_packs"])
def test_documents_apart(pretrain, tmp_path, check):
    """Masks between documents; packs and fine-tuning. core_v0.16.1 has not got them."""
    script = [str(ROOT / f"tests/megatron/{check}.py"), str(tmp_path)]
    run = torchrun(script, tmp_path / "run", processes=1, checkout=pretrain.checkout)
    assert run.returncode == 0, run.output[-4000:]
    has_option = pretrain.has("inter_document_masking", "core/datasets/gpt_dataset.py")
    assert run.output.splitlines()[-1] == ("equal" if has_option else "absent")
