"""Trainers that are not there: their contracts, with stand-ins for the classes that our adapters derive from."""

import dataclasses
import importlib
import itertools
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError, MissingPackageError, ResumeError
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import cells, raises
from tests.trainers.matrix import configs


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return configs(tmp_path_factory.mktemp("trainers") / "data")


def stand_in(monkeypatch, module, adapter, **names):
    """The adapter, imported over a module that has only these names."""
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        name = ".".join(parts[:k])
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(names if k == len(parts) else {})
        monkeypatch.setitem(sys.modules, name, made)
    for name in [name for name in sys.modules if f".{adapter}" in name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(f"conceptloader.integrations.{adapter}.data")


class TitanBase:
    """components/data/loader.py: BaseDataLoader; of release 0.3.0: components/dataloader.py."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        pass


class TitanSteps:
    """observability/structured_logger: the step that the Trainer's loop has set, counted from 1."""

    step: int | None = None
    tags: tuple[str, ...] = ()

    def get_step(self):
        return self.step

    def get_step_tags(self):
        return self.tags

    def train(self, loader, first, stop, microbatches):
        """The samples of the steps [first, stop), from 0, as Trainer.train takes them from one rank's loader."""
        batches, samples = iter(loader), []  # a generator: it begins when the first batch is asked for
        for self.step in range(first + 1, stop + 1):
            taken = [next(batches)[0]["sample_index"].tolist() for _ in range(microbatches)]
            samples.append(list(itertools.chain(*taken)))
        return samples


def with_steps(monkeypatch):
    steps = TitanSteps()
    monkeypatch.setitem(sys.modules, "torchtitan.observability", types.ModuleType("torchtitan.observability"))
    monkeypatch.setattr(sys.modules["torchtitan.observability"], "structured_logger", steps, raising=False)
    return steps


TITANS = {"main": "torchtitan.components.data.loader", "0.3.0": "torchtitan.components.dataloader"}


def maker(monkeypatch, paths, version="main"):
    module = stand_in(monkeypatch, TITANS[version], "torchtitan_lm", BaseDataLoader=TitanBase)

    def make(path=paths[0], rank=0, ranks=2, rows=3, **options):
        size = {"max_context_length": 16, "num_tokens_per_batch": rows * 16}
        if version != "main":
            size = {"seq_len": 16, "local_batch_size": rows}
        config = module.ConceptDataLoader.Config(config=path, **{"model_inputs": ("sample_index",), **options})
        return module.ConceptDataLoader(config, dp_world_size=ranks, dp_rank=rank, tokenizer=None, **size)

    return make


titan_steps = pytest.fixture(with_steps)


@pytest.fixture
def titan(monkeypatch, paths, titan_steps):
    return maker(monkeypatch, paths)


@pytest.fixture
def titan_030(monkeypatch, paths, titan_steps):
    return maker(monkeypatch, paths, "0.3.0")


def titan_samples(loader, count):
    return [inputs["sample_index"].tolist() for inputs, _ in itertools.islice(loader, count)]


def test_torchtitan_states_are_equal_on_all_ranks_and_go_on_on_others(titan):
    loaders = [titan(rank=rank) for rank in range(2)]
    assert [titan_samples(loader, 2) for loader in loaders] == [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert [type(value) for value in states[0].values()] == [str], "one leaf: DCP loads leaf by leaf"
    one = titan(ranks=1, rows=6)
    one.load_state_dict({})
    one.load_state_dict(states[1])
    assert titan_samples(one, 1) == [[12, 13, 14, 15, 16, 17]]


def test_torchtitan_030_takes_rows_and_says_infinite(titan_030, paths):
    """Its validator sets `infinite`, and its Trainer names the sizes otherwise."""
    inputs, labels = next(iter(titan_030(model_inputs=("concepts_span_index", "concepts_ids"))))
    shape = inputs["input"].shape
    assert shape == inputs["positions"].shape == inputs["concepts_span_index"].shape == labels.shape == (3, 16)
    assert torch.equal(labels[:, :-1], inputs["input"][:, 1:])
    passes = list(titan_030(paths[1], rows=5, infinite=False))
    seen = [index for batch, labels in passes for index in batch["sample_index"][(labels != -100).any(1)].tolist()]
    assert seen == list(range(0, len(cl.SampleDataset(paths[1])), 2))
    assert len(titan_samples(titan_030(paths[1], rows=5), len(passes) + 1)) == len(passes) + 1
    with raises(ConfigError, paths[0], "shuffled data, which have no end"):
        titan_030(infinite=False)


TITAN_REFUSES = """
run | {repeat: false} | run.yaml | shuffled data, which have no end
run | {model_inputs: [concept_ids]} | dataloader.model_inputs | 'concept_ids'
run | {model_inputs: [positions]} | dataloader.model_inputs | positions, which torchtitan gives the model
- | {} | dataloader.config | nothing
weighted | {model_inputs: []} | outputs.loss_weight | dataloader.model_inputs does not name
packed | {model_inputs: [max_seqlen]} | dataloader.model_inputs | max_seqlen
"""


def test_torchtitan_refusals(titan, paths, tmp_path, monkeypatch):
    def written(**changes):
        content = yaml.safe_load(Path(paths[0]).read_text())
        content["datasets"]["data"]["path"] = str(Path(paths[0]).parent / "data")
        path = tmp_path / f"{'-'.join(changes)}.yaml"
        path.write_text(yaml.safe_dump({**content, **changes}))
        return str(path)

    given = {
        "weighted": str(write_config(write_datasets(tmp_path) / "run.yaml", outputs={"loss_weight": "weight"})),
        "packed": written(outputs={"position_ids": "document", "cu_seqlens": True}, seed=3),
    }
    for path, options, where, found in cells(TITAN_REFUSES):
        with raises(ConfigError, where, found):
            titan(path=given.get(path, paths[0] if path else ""), **yaml.safe_load(options))
    state, loader = titan().state_dict(), titan()
    titan_samples(loader, 2)
    with pytest.raises(ResumeError, match="seed"):
        titan(path=written(seed=9)).load_state_dict(loader.state_dict())
    titan(path=written(seed=9)).load_state_dict(state)  # nothing is behind
    titan(path=written(seed=9), allow_changed=("seed",)).load_state_dict(loader.state_dict())
    with pytest.raises(
        MissingPackageError, match=r"pip install torchtitan==0\.3\.0, or take its main branch of 2026-08-20"
    ):
        stand_in(monkeypatch, "torchtitan.components.data.loader", "torchtitan_lm")


def test_torchtitan_logs_the_trainers_steps(titan, titan_steps, paths, tmp_path, caplog):
    """Whatever the global batch was, and whatever of a checkpoint was left out: the log's samples are the step's."""
    log = tmp_path / "outputs" / "checkpoint"  # torchtitan makes it with its first checkpoint
    options = {"run_log": str(log), "ranks": 1}
    first = titan(**options, rows=6, global_batch_size=12)
    trained = titan_steps.train(first, 0, 3, microbatches=2)
    larger = titan(**options, rows=12, global_batch_size=24)
    larger.load_state_dict(first.state_dict())
    trained += titan_steps.train(larger, 3, 5, microbatches=2)
    smaller = titan(**options, rows=4)
    smaller.load_state_dict(larger.state_dict())
    trained += titan_steps.train(smaller, 5, 8, microbatches=1)
    history = cl.adapters.RunLog(log).history
    assert trained == [list(range(*history.range_of(step))) for step in range(8)]
    assert trained[-1] == [92, 93, 94, 95]
    assert not caplog.records

    without = titan(**options, rows=4)  # exclude_from_loading: [dataloader]
    assert titan_steps.train(without, 8, 9, microbatches=1) == [[0, 1, 2, 3]]
    assert cl.adapters.RunLog(log).history.range_of(8) == (0, 4)
    assert "torchtitan resumes at step 8, but its checkpoint's state was not given to this loader" in caplog.text

    caplog.clear()
    titan_steps.tags = ("eval",)  # a validator's loader begins at the first sample, and its batches are no steps
    measured = []
    remove = cl.metrics.on_step(measured.append)
    titan_samples(titan(), 3)
    remove()
    assert not caplog.records
    assert not measured
    with raises(ConfigError, "dataloader.run_log", "a run log in a validation"):
        next(iter(titan(**options)))
    content = {**yaml.safe_load(Path(paths[0]).read_text()), "metrics": True}
    Path(paths[0]).with_name("measured.yaml").write_text(yaml.safe_dump(content))
    with raises(ConfigError, "metrics", "a validation of torchtitan, which measures no steps"):
        next(iter(titan(str(Path(paths[0]).with_name("measured.yaml")))))


def test_torchtitan_steps_of_another_size_are_refused(titan, titan_steps, tmp_path):
    """Steps of the run log would name other samples: it is seen in the first step, or at the second one's beginning."""
    for size, found in [(0, "sample 6 in step 0, expected step 1"), (24, "sample 12 in step 1, expected step 0")]:
        loader = titan(run_log=str(tmp_path / f"{size}"), global_batch_size=size, ranks=1, rows=6)
        with pytest.raises(ConfigError, match=rf"dataloader\.global_batch_size: .* {found}"):
            titan_steps.train(loader, 0, 3, microbatches=2)
    loader = titan(ranks=1, rows=6)  # nobody asks for its steps
    assert len(titan_steps.train(loader, 0, 3, microbatches=2)) == 3


def test_torchtitan_of_another_interface_is_named(monkeypatch, paths):
    with_steps(monkeypatch)
    module = stand_in(monkeypatch, TITANS["main"], "torchtitan_lm", BaseDataLoader=TitanBase)
    with raises(ConfigError, "torchtitan", "tells its loader another size of batches"):
        module.ConceptDataLoader(
            module.ConceptDataLoader.Config(config=paths[0]), dp_world_size=1, dp_rank=0, rows=4, length=16
        )


@pytest.mark.parametrize("past", [0, 2], ids=["between passes", "in a pass"])
def test_torchtitan_logs_each_pass(titan, titan_steps, paths, tmp_path, past):
    """Of sequential data, whose last step is filled up: the log names the samples of a step in any pass."""
    size, batch = len(cl.SampleDataset(paths[1])), 10
    assert size % batch
    a_pass = -(-size // batch)
    options = {"run_log": str(tmp_path), "ranks": 1, "rows": 5}
    options["global_batch_size"] = batch
    loader, stop = titan(paths[1], **options), 2 * a_pass + past
    trained = titan_steps.train(loader, 0, stop, microbatches=2)
    resumed = titan(paths[1], **options)
    resumed.load_state_dict(loader.state_dict())
    trained += titan_steps.train(resumed, stop, 4 * a_pass, microbatches=2)
    history = cl.adapters.RunLog(tmp_path).history
    for step, samples in enumerate(trained):
        first, last = history.range_of(step)
        assert (first, last) == (step % a_pass * batch, min(size, first + batch))
        assert samples == [sample % size for sample in range(first, first + batch)], step
