"""Steps, samples and states of a run, from Megatron's arguments and checkpoints."""

import json
import shlex
import sys
from types import SimpleNamespace

import pytest
import yaml
from megatron.core import parallel_state

from conceptloader.config import load_config
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.integrations import megatron_lm
from conceptloader.integrations.megatron_lm import launch
from conceptloader.integrations.megatron_lm.launch import Run
from conceptloader.integrations.megatron_lm.options import one_pass, take_options, wanted, with_share
from conceptloader.integrations.megatron_lm.steps import batch_schedule, first_sample
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.state import OrderState
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.stock import arguments, builder, data_of, dataset_config
from tests.raises import cells, raises


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_datasets(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("run", "workers", "found"),
    [(None, 0, "no data"), (Run({}), 2, "--num-workers 2"), (Run({}), 0, "no data yet, or data of `order: megatron`")],
)
def test_weights_that_cannot_be_set_are_refused(monkeypatch, set_args, run, workers, found):
    set_args(arguments(num_workers=workers))
    monkeypatch.setattr(launch, "_run", run)
    with raises(ConfigError, "set_weights", found):
        megatron_lm.set_weights({"code": 1})


# With steps of tokens for 10 tokens a sample. A Megatron that has steps ignores the ramp.
SCHEDULES = """
{} | [[0, 8]]
{rampup_batch_size: ['4', '4', '40']} | [[0, 4], [40, 8]]
{rampup_batch_size: ['4', '4', '40'], step_batch_size_schedule: null} | [[0, 8]]
{step_batch_size_schedule: '0:4, 2K:8 1.5M:16', seq_length: 10} | [[0, 4], [200, 8], [150000, 16]]
{global_batch_size: 10, decrease_batch_size_if_needed: true} | [[0, 8]]
"""


@pytest.mark.parametrize(("changes", "rule"), cells(SCHEDULES))
def test_batch_schedules(changes, rule):
    assert [*map(list, batch_schedule(arguments(**yaml.safe_load(changes)), 4).rule)] == yaml.safe_load(rule)
    with raises(ConfigError, expected="a number"):
        batch_schedule(arguments(step_batch_size_schedule="0:many"), 4)


def test_phase_transitions_count_on():
    assert first_sample(arguments(iteration=7, consumed_train_samples=50)) == 0
    phases = {"phase_transition_iterations": [4, 6], "iteration": 5}
    assert first_sample(arguments(**phases, consumed_train_samples=40)) == 32
    with raises(ConfigError, found="36 consumed samples at iteration 5", expected="40"):
        first_sample(arguments(**phases, consumed_train_samples=36))


@pytest.mark.usefixtures("one_process")
def test_states_of_checkpoints(folder):
    config, rules = write_config(folder / "data.yaml"), dataset_config(16)
    data = data_of(config, rules)
    state = data.state(32)
    saved = OrderState.read(state, "state")
    assert (saved.consumed, saved.spec) == (32, data.spec)
    again = data_of(config, rules, consumed=32, saved=state)
    assert again.spec == data.spec
    with raises(ResumeError, found="32 consumed samples without a state of conceptloader"):
        data_of(config, rules, consumed=32)
    data_of(config, rules, consumed=32, accept=["loader"])
    plain = json.loads(state["conceptloader"])
    assert data_of(config, rules, consumed=32, saved=plain).spec == data.spec
    for damaged, found in (
        ({**plain, "version": 9}, "version 9"),
        (data.state(24), "a state of 24 consumed samples"),
    ):
        with raises(ResumeError, found=found):
            data_of(config, rules, consumed=32, saved=damaged)
    with pytest.raises(ResumeError, match=r"--seq-length \(seq_len\): saved 16, now 32, mid-epoch"):
        data_of(config, dataset_config(32), consumed=32, saved=state)
    with raises(ResumeError, found='accept=["seed"]'):
        data_of(write_config(folder / "other.yaml", seed=12), rules, consumed=32, saved=state)
    with raises(ConfigError, "seq_len", "64"):
        data_of(write_config(folder / "other.yaml", seq_len=64), rules)


@pytest.mark.usefixtures("one_process")
def test_a_missing_state_is_no_sign_of_another_loader_beside_our_run_log(folder, tmp_path, set_args):
    """Another start in the process has data, a state and a line of the log of its own; `training` is Megatron's."""
    config, save = write_config(folder / "data.yaml"), str(tmp_path / "save")

    def start(run, **changes):
        args = set_args(arguments(**{"save": save, "load": save, **changes}))
        for _ in range(2):  # virtual stages
            run.build(lambda _: None, builder(dataset_config(16)))
        run.save(lambda args: None, args)
        assert OrderState.read(args.conceptloader, "state").spec == run.data.spec
        return args

    def run_of(*accept):
        return Run({"config": config, "accept": accept})

    run = run_of()
    start(run)
    data, run.saved = run.data, run.data.state(32)
    again = start(run, consumed_train_samples=32, iteration=4)
    assert run.data is not data
    assert run.data.consumed == 32
    assert [one.consumed for one in RunLog(save).starts] == [0, 32]
    assert again.conceptloader == run.saved
    lost = {"consumed_train_samples": 40, "iteration": 5}
    with raises(ResumeError, expected="gave those from 0 on", fix="--conceptloader-allow-changed log"):
        start(run_of(), **lost)
    assert start(run_of("log"), **lost).conceptloader == run.data.state(40)
    write_config(config, seed=12)
    with raises(ResumeError, found="seed: saved 11, now 12") as refused:
        start(run_of("log"), **lost)
    assert "--conceptloader-allow-changed seed" in str(refused.value)
    start(run_of("loader"), **lost)
    # What our log does not cover may be of another loader, which is refused as ever, or taken over.
    with raises(ResumeError, found="another loader chose them"):
        start(run_of(), consumed_train_samples=40, save=str(tmp_path / "new"), load=None)


@pytest.fixture
def starts(folder, one_process, set_args):
    """A run of a configuration, with its datasets of training and validation, as Megatron's arguments start it."""

    def start(config, size=64, rules=None, **changes):
        set_args(arguments(split="8,2,0", **changes))
        asked, run = (
            builder(dataset_config(16, **rules or {}), [size, 8, 0]),
            Run({"config": config, "accept": ["loader"]}),
        )
        asked.config.mock = True
        train, valid, _ = run.build(lambda _: None, asked)
        return run, train, valid

    return start


# Megatron's arguments, its size of the data, the run's end. The schedule: 16 samples in two steps, then 16 a step.
ENDS = yaml.safe_load("""
beyond train_samples: [{step_batch_size_schedule: "0:8 256:16", train_iters: 6, train_samples: 72}, 72, 80]
smaller batches: [{iteration: 8, consumed_train_samples: 128, train_iters: 16}, 128, 192]
larger batches: [{iteration: 8, consumed_train_samples: 128, global_batch_size: 32, train_iters: 10}, 320, 192]
nothing left: [{iteration: 8, consumed_train_samples: 128, train_iters: 8}, 64, 128]
a phase: [{phase_transition_iterations: [6], train_iters: 20}, 48, 48]
""")


@pytest.mark.parametrize("name", ENDS)
def test_the_data_last_to_the_last_step(folder, tmp_path, starts, name):
    """Megatron's sizes are of batches that never change. max_epochs holds for the samples that are read."""
    changes, size, end = ENDS[name]
    run, train, valid = starts(write_config(folder / "data.yaml"), size, **changes)
    assert run.data.run.end == end
    assert len(train) > max(end, changes.get("consumed_train_samples", 0))  # else the sampler says nothing is left
    assert [int(train[k]["sample_index"]) for k in (end - 1, end)] == [end - 1, end]
    assert int(valid[1000]["sample_index"]) == 1000  # evaluations may become more frequent at any resume
    order = run.data.run.blend.order
    datasets = {n: {"path": str(folder / n), "weight": w} for n, w in (("code", 0.3), ("web", 0.7))}
    for excess in (0, 1):
        datasets["code"]["max_epochs"] = (order.counts(end)[0] - excess + 0.5) / order.sizes[0]
        limited = write_config(tmp_path / "limited.yaml", datasets=datasets)
        if excess:
            with raises(ConfigError, "datasets.code.max_epochs", f"a run of {end} samples"):
                starts(limited, size, **changes)
        else:
            starts(limited, size, **changes)


MASKS = yaml.safe_load("""
- [{}, {}, true]
- [{}, {bf16: true, masked_softmax_fusion: false}, true]
- [{}, {bf16: true}, false]
- [{}, {transformer_impl: transformer_engine}, false]
- [{create_attention_mask: false}, {}, false]
""")


@pytest.mark.parametrize(("rules", "arguments", "takes"), MASKS)
def test_masks_that_attention_ignores(folder, starts, caplog, rules, arguments, takes):
    """Megatron-LM issue 2357: its kernels are causal. Packs raise; windows are Megatron's own, and it is said."""
    windows, packs = write_config(folder / "data.yaml"), write_config(folder / "packs.yaml", packing={"bins": 8})
    reset = {"reset_attention_mask": True, **rules}
    starts(windows, rules=reset, **arguments)
    assert ("documents would see each other" in caplog.text) != takes
    if takes:
        starts(packs, rules=reset, **arguments)
    else:
        with raises(ConfigError, "--reset-attention-mask", fix="--dataloader-inter-document-masking"):
            starts(packs, rules=reset, **arguments)
    caplog.clear()
    starts(windows, rules=rules, **arguments)
    assert not caplog.text
    starts(packs, rules=rules, **arguments)
    assert "documents of a pack see each other" in caplog.text


@pytest.mark.parametrize("kind", ["cyclic", "external"])
def test_loaders_that_would_draw_the_samples_once_more(folder, set_args, kind):
    """A trace of the run would name other samples than it read."""
    set_args(arguments(dataloader_type=kind))
    run = Run({"config": write_config(folder / "data.yaml"), "accept": ()})
    with raises(ConfigError, "--dataloader-type", kind, "single"):
        run.build(lambda _: None, builder(dataset_config(16)))
    assert run.data is None


@pytest.mark.usefixtures("one_process")
def test_weights_need_the_stage_of_the_loss(folder, monkeypatch):
    config = write_config(folder / "data.yaml", outputs={"loss_weight": "weight"})
    with raises(ConfigError, "outputs.loss_weight", "with concept stage none"):
        data_of(config, dataset_config(16), stage="none")
    assert data_of(config, dataset_config(16), stage="last").spec
    with monkeypatch.context() as pipeline:
        pipeline.setattr(parallel_state, "get_pipeline_model_parallel_world_size", lambda: 2)
        for stage in ("first", "0"):
            with raises(ConfigError, "outputs.loss_weight", f"with concept stage {stage}"):
                data_of(config, dataset_config(16), stage=stage)
    assert wanted(load_config(config), concepts=False).outputs.loss_weight is None


@pytest.mark.usefixtures("one_process")
def test_releases_that_have_other_names(folder, monkeypatch):
    """dev renamed hybrid_context_parallel; what is not known under either name, or cannot be imported, says so."""
    path = write_config(folder / "data.yaml")

    def config(**named):
        found = {key: value for key, value in vars(dataset_config(16)).items() if key != "hybrid_context_parallel"}
        return SimpleNamespace(**found, **named)

    assert data_of(path, config(dynamic_context_parallel=False)).spec
    for name in ("hybrid_context_parallel", "dynamic_context_parallel"):
        option = f"--{name.replace('_', '-')}: found .*, which needs samples of differing length"
        with pytest.raises(ConfigError, match=option):
            data_of(path, config(**{name: True}))
    known = r"Megatron-LM: .*\(conceptloader knows core_v0\.16\.1 to "
    with pytest.raises(ConfigError, match=known):
        data_of(path, config())
    monkeypatch.delattr("megatron.core.datasets.utils.Split")
    monkeypatch.delitem(sys.modules, "conceptloader.integrations.megatron_lm.data")
    with pytest.raises(ConfigError, match=f"{known}.*|cannot import name 'Split'"):
        _ = megatron_lm.MegatronData


UNNOTICED = """
--logits-save-dir teacher | by Megatron's arguments | conceptloader.column_writer
--logits-load-dir=teacher | by Megatron's arguments | outputs.columns
--fim-data | as the dataset has them | examples/pytorch/fim.py
--perform-rl-step | builds no datasets | without conceptloader
--mock-data | random tokens | omit one of them
"""


@pytest.mark.parametrize("data", [["--conceptloader-config", "x.yaml"], ["--data-path", "x"]], ids=["yaml", "in place"])
@pytest.mark.parametrize(("words", "why", "instead"), cells(UNNOTICED))
def test_options_that_would_not_notice_the_data(data, words, why, instead):
    """At launch; with --mock-data alone, whose data its arguments tell, they are Megatron's own business."""
    words = shlex.split(words)
    with raises(ConfigError, words[0].partition("=")[0], why, fix=instead):
        take_options([*data, *words])
    assert take_options(["--mock-data", *words]) == (None, ["--mock-data", *words])


def test_what_the_options_cannot_say(tmp_path):
    words = ["--conceptloader-config", "x.yaml", "--conceptloader-allow-changed", "seed", "phase.0.weights"]
    with raises(ConfigError, "--conceptloader-allow-changed", "'phase'", fix="did you mean phases"):
        take_options(words)
    config = one_pass(load_config(write_config(tmp_path / "c.yaml", split_documents=[0, 0.5])))
    with raises(ConfigError, "split_documents", "with --split"):
        with_share(config, (0, 0.5))
