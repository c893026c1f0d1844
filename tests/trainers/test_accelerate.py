"""What is trained is counted by the loader, whatever Accelerate does with its own count."""

import itertools

import pytest
import torch

from conceptloader.errors import ConfigError
from tests.raises import raises
from tests.ranks.launch import forked

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: `make test-trainers` has it")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402

from conceptloader.integrations.accelerate_lm import AcceleratedEvaluation, AcceleratedLoader  # noqa: E402

MICRO = 4
PLUGIN = "GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False)"


class Script:
    """A user's: it trains what it is given, and keeps the samples of each optimizer step that was really made."""

    def __init__(self, config, accumulate, **options):
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        options = options or {"gradient_accumulation_steps": accumulate}
        self.accelerator = accelerate.Accelerator(cpu=True, **options)
        self.layer = torch.nn.Linear(1, 1)
        self.prepare()
        self.loader = AcceleratedLoader(self.accelerator, config, micro_batch_size=MICRO)
        self.batch, self.begun, self.steps = MICRO * accumulate, [], []

    def prepare(self):
        self.model, self.optimizer = self.accelerator.prepare(self.layer, torch.optim.SGD(self.layer.parameters(), 0.1))

    def free_memory(self):
        self.accelerator.free_memory()
        self.prepare()

    def train(self, batches):
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                self.begun += batch["sample_index"].tolist()
                before = self.layer.weight.item()
                self.accelerator.backward(self.model(torch.ones(1, 1)).sum())
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.layer.weight.item() != before:
                self.steps.append(self.begun)
                self.begun = []

    def prepared(self, batches):
        """A DataLoader of the user, which resets the count of Accelerate where it ends."""
        return self.accelerator.prepare(torch.utils.data.DataLoader(list(range(batches)), batch_size=1))

    def check(self, first=0):
        """Every step was of the next global batch, and the loader says so."""
        stop = first + len(self.steps) * self.batch
        assert self.steps == [list(range(k, k + self.batch)) for k in range(first, stop, self.batch)]
        assert self.loader.consumed_samples == stop
        self.loader.check_step(stop // self.batch)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_count_reset_between_steps(config, tmp_path, accumulate):
    """By another prepared loader that ends with a whole step, once and with every step, and by free_memory."""
    script = Script(config, accumulate)
    for batches, passes in ((2 * accumulate, 2), (accumulate, 4)):
        other = script.prepared(batches)
        for _ in range(passes):
            script.train(batch for _, batch in zip(other, script.loader, strict=False))
            script.check()
    for _ in range(2):
        script.train(itertools.islice(script.loader, accumulate))
        script.free_memory()
        next(iter(script.loader))  # and a batch that nobody trains
        script.free_memory()
        script.check()
    script.train(itertools.islice(script.loader, accumulate))
    assert len(script.steps) == 11
    script.accelerator.save_state(tmp_path / "state")
    resumed = Script(config, accumulate)
    resumed.accelerator.load_state(tmp_path / "state")
    resumed.train(itertools.islice(resumed.loader, 2 * accumulate))
    resumed.check(11 * script.batch)


def test_step_within_a_global_batch(config, tmp_path):
    """It is refused before it is made; what the error says to do is enough."""
    script = Script(config, 3)
    other = script.prepared(8)
    with raises(ConfigError, "accelerator.step", "an optimizer step after 2 micro batches", fix=PLUGIN):
        script.train(batch for _, batch in zip(other, script.loader, strict=False))
    script.check()
    assert len(script.steps) == 2
    script.accelerator.save_state(tmp_path / "state")
    plugin = GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False)
    script = Script(config, 3, gradient_accumulation_plugin=plugin)
    script.accelerator.load_state(tmp_path / "state")
    other = script.prepared(8)
    for _ in range(3):
        script.train(batch for _, batch in zip(other, script.loader, strict=False))
    assert len(script.steps) == 8
    script.check(24)


def evaluate(rank, config, ranks):
    """A script's process: evaluations, also in the last step of a prepared DataLoader, which has a remainder of 1."""
    AcceleratorState._reset_state(True)  # of the process that was forked
    GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True)
    other = accelerator.prepare(torch.utils.data.DataLoader(list(range(9)), batch_size=4))
    for count in (24, 23, 22, 20, 13, 1):
        loader = AcceleratedEvaluation(accelerator, config, micro_batch_size=4, num_samples=count)
        for _ in other:
            seen, losses = [], 0
            for batch in loader:
                index = batch["sample_index"]
                found = accelerator.gather_for_metrics({"index": index, "loss": index.sum()})
                seen += found["index"].tolist()
                names = [f"sample {number}" for number in index.tolist()]
                assert accelerator.gather_for_metrics(names) == [f"sample {n}" for n in found["index"].tolist()]
                losses += len(found["loss"])
            assert (seen, losses) == (list(range(count)), ranks * len(loader)), (count, seen, losses)
    for batch in AcceleratedEvaluation(accelerator, config, micro_batch_size=4, num_samples=20):
        of_samples = accelerator.gather_for_metrics(batch["sample_index"])
        assert accelerator.gather_for_metrics([*batch["sample_index"]], use_gather_object=True) == [*of_samples]
        with raises(ConfigError, "gather_for_metrics", "a dict", "a list with an object for each of the"):
            accelerator.gather_for_metrics({"names": ["a"] * len(batch["labels"])})
        with raises(ConfigError, "gather_for_metrics", f"a tensor of {batch['labels'].numel()} rows"):
            accelerator.gather_for_metrics(batch["labels"].flatten())
    assert accelerator.gather_for_metrics(torch.ones(2)).shape == (2 * ranks,)


def test_metrics_of_evaluations_have_each_sample_once(config):
    """Three processes, of which two or one have fewer rows in the last batch, or all as many."""
    forked(evaluate, 3, config, 3)


def test_blocks_without_a_batch_of_their_own(config):
    script = Script(config, 1)
    with raises(
        ConfigError, "accelerator.accumulate", "2 blocks", "has yielded 4 samples", fix="accumulate(first, sec"
    ):
        script.train(batch for batch in script.loader for _ in range(2))


@pytest.mark.parametrize("option", ["split_batches", "dispatch_batches"])
def test_options_of_other_loaders(config, caplog, option):
    configuration = accelerate.utils.DataLoaderConfiguration(**{option: True}, use_stateful_dataloader=True)
    script = Script(config, 2, gradient_accumulation_steps=2, dataloader_config=configuration)
    assert f"DataLoaderConfiguration({option}): no effect" in caplog.text
    script.model, script.loader = script.accelerator.prepare(*script.accelerator.prepare(script.model, script.loader))
    script.train(itertools.islice(script.loader, 4))
    script.check()
