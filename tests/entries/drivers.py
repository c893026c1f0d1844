"""A driver for each entry: a configuration through it into a training, as that trainer does it.

A driver trains `Taken.steps` steps of `BATCH` samples on one rank and notes what the model was given, in the common
names: those of a plain batch, but `targets` for labels and loss mask together, which many trainers get as one.

OLMo-core and torchtitan are not installed with the others: their drivers have stand-ins for the classes that the
adapters derive from, and do what the trainers do with them.
"""

import importlib
import itertools
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import yaml
from torch.nn.functional import cross_entropy

import conceptloader as cl

VOCABULARY, EOD, SEQ_LEN, BATCH, IGNORED = 256, 255, 16, 4, -100
LOGITS = torch.randn((VOCABULARY, VOCABULARY), generator=torch.Generator().manual_seed(3))
"""Of the model of all trainings, by the input token. It does not learn, so that losses depend on data alone."""


@dataclass
class Taken:
    """What a training was given.

    folder: of its checkpoints. names: of a batch, which its model is to get besides inputs and targets. workers: of the
    trainer's DataLoader, where the launcher gives it data.

    Attributes:
        batches: Of the model, by step.
        metrics: What the trainer's loggers were given, by step.
    """

    folder: Path
    steps: int = 4
    names: tuple[str, ...] = ()
    workers: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def take(self, batch, **renamed):
        """Note a batch; renamed: the common name of what the trainer calls otherwise. Returns it in common names."""
        found = {renamed.get(name, name): as_array(value) for name, value in batch.items()}
        if "targets" not in found:
            mask = found.get("loss_mask", np.ones(1))
            found["targets"] = np.where(mask != 0, found["labels"], IGNORED)
        self.batches.append(found)
        return found

    @property
    def done(self):
        return len(self.batches) == self.steps


def as_array(value):
    """A copy of it in numpy."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.view(torch.uint16)  # its bits, since numpy has no such type
    if isinstance(value, torch.Tensor):
        return value.numpy(force=True).copy()
    if isinstance(value, np.ndarray | np.generic | int | float):
        return np.array(value)
    return value


def token_losses(batch):
    """[B, S], 0 where a target is ignored."""
    inputs, targets = (torch.as_tensor(np.asarray(batch[name])).long() for name in ("input_ids", "targets"))
    return cross_entropy(LOGITS[inputs].transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)


def mean_losses(batch, names):
    """Mean loss of each dataset."""
    losses = cl.DatasetLosses(names)
    losses.add(*added(batch))
    return losses.finish()


def added(batch):
    """What a loop adds to losses: those of each token, and what it needs of the batch."""
    of_samples = {name: torch.as_tensor(batch[name]) for name in ("dataset_id", "sample_index") if name in batch}
    return token_losses(batch), {**of_samples, "loss_mask": mask_of(batch)}


def observe(loader, batch):
    """The step of a batch has ended."""
    if not loader.run.observes:
        return
    if isinstance(loader, cl.Loader):
        loader.losses.add(*added(batch))
        loader.observe_step()
        return
    means, (losses, given) = mean_losses(batch, loader.blend.config.names), added(batch)
    loader.observe(means, samples=(batch["sample_index"], losses.sum(1), given["loss_mask"].sum(1)))


def mask_of(batch):
    return torch.as_tensor(batch["targets"] != IGNORED).float()


# Loops of one's own.


def _loop(make):
    """Over a loader of conceptloader's own, as docs/mixtures.md has it."""

    def drive(config, taken, patch):
        loader = make(config, micro_batch_size=BATCH)
        loader.log_start(taken.folder, 0)
        with loader:
            for batch in loader:
                given = taken.take(batch)
                if hasattr(loader, "acknowledge"):
                    loader.acknowledge(batch["consumed_samples"])
                observe(loader, given)
                if taken.done:
                    break

    return drive


def samples(config, taken, patch):
    dataset = cl.SampleDataset(config)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, collate_fn=cl.collate_fn)
    for batch in itertools.islice(loader, taken.steps):
        taken.take(batch)


def grain(config, taken, patch):
    source = cl.GrainSource(config)
    for index in range(taken.steps):
        sample = source[index]
        whole = {f"{name.removesuffix('_offsets')}_{part}" for name in sample for part in ("offsets", "values")}
        whole = {name for name in whole if name.endswith("_offsets") or f"{name[:-7]}_offsets" in sample}
        taken.take({
            name: [value] if name.endswith("_records") else value if name in whole else np.asarray(value)[None]
            for name, value in sample.items()
        })  # fmt: skip


# Megatron-LM.


@contextmanager
def around(entry):
    """What the trainings of an entry have around them, once for all of them: making process groups takes long."""
    if entry.title.startswith(("Megatron", "nanotron")):
        with one_rank(entry.title.startswith("Megatron")):
            yield
    else:
        yield


@contextmanager
def one_rank(megatron):
    """A process group of this process alone, and Megatron's groups, if there are none yet."""
    with ExitStack() as made:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            made.callback(dist.destroy_process_group)
        if megatron:
            from megatron.core import parallel_state

            if not parallel_state.model_parallel_is_initialized():
                parallel_state.initialize_model_parallel()
                made.callback(parallel_state.destroy_model_parallel)
        yield


def _megatron_config(config):
    from tests.megatron.stock import Tokenizer, dataset_config

    tokenizer = Tokenizer()
    tokenizer.eod, tokenizer.vocab_size = EOD, VOCABULARY
    return dataset_config(SEQ_LEN, tokenizer=tokenizer, random_seed=1234)


MEGATRON_NAMES = {"tokens": "input_ids"}


def megatron(config, taken, patch):
    from conceptloader.integrations.megatron_lm import MegatronData

    sizes = [taken.steps * BATCH, 0, 0]
    data = MegatronData(_written(config, taken), _megatron_config(config), sizes, micro_batch_size=BATCH)
    iterator = data.iterator(data.datasets()[0])
    for _ in range(taken.steps):
        taken.take(data.get_batch(iterator), **MEGATRON_NAMES)


def megatron_launched(config, taken, patch):
    """What the launcher's patches call in Megatron's training loop; real ones are in tests/megatron."""
    from megatron.core.datasets.gpt_dataset import GPTDataset

    from conceptloader.integrations.megatron_lm import launch
    from conceptloader.integrations.megatron_lm.dataset import data_loader

    written = {}
    args = SimpleNamespace(
        rank=0, world_size=1, save=str(taken.folder), load=None, micro_batch_size=BATCH, global_batch_size=BATCH,
        seq_length=SEQ_LEN, iteration=0, curr_iteration=0, consumed_train_samples=0, split=None,
        rampup_batch_size=None, decrease_batch_size_if_needed=False, num_workers=taken.workers,
        dataloader_type="single", train_samples=None, train_iters=taken.steps, padded_vocab_size=VOCABULARY,
        phase_transition_iterations=None, tensorboard_log_interval=1,
    )  # fmt: skip
    board = SimpleNamespace(add_scalar=lambda name, value, step: written.setdefault(step, {}).update({name: value}))
    stand_in(
        patch, "megatron.training", get_args=lambda: args, get_tensorboard_writer=lambda: board,
        get_wandb_writer=lambda: None,
    )  # fmt: skip
    applied = []
    upstream = launch.MEGATRON
    patch.setattr(type(upstream), "apply", lambda self, patches: applied.extend(patches))
    given, _ = launch.take_options(["--conceptloader-config", _written(config, taken)])
    assert given is not None
    run = launch.Run(given)
    patch.setattr(launch, "_run", run)
    builder = SimpleNamespace(
        cls=GPTDataset, config=_megatron_config(config), sizes=[taken.steps * BATCH, 0, 0],
        is_built_on_rank=lambda: True,
    )  # fmt: skip
    train = run.build(None, builder)[0]
    iterator = run.iterator(None, iter(data_loader(train, BATCH, args.consumed_train_samples, taken.workers)))
    (after_step,) = [one.by for one in applied] or [lambda stock: None]
    for step in range(taken.steps):
        args.curr_iteration = step
        stock = next(iterator)
        found = taken.take({**stock, **(launch.concepts(iterator) or {})}, **MEGATRON_NAMES)
        if "dataset_id" in found:
            launch.add_losses(*added(found))
        args.consumed_train_samples += BATCH
        after_step(lambda *_, **__: None)
    taken.metrics += written.values()


# nanotron.


NANOTRON_NAMES = {"label_ids": "labels", "label_mask": "loss_mask"}


def _nanotron_stands_in(patch):
    stand_in(patch, "nanotron.parallel.pipeline_parallel.tensor_pointer", TensorPointer=None)
    section = type("NanosetDatasetsArgs", (), {"__annotations__": {}})
    patch.setitem(sys.modules, "nanotron.config", types.ModuleType("nanotron.config"))
    sys.modules["nanotron.config"].NanosetDatasetsArgs = dataclass(section)


def nanotron(config, taken, patch):
    from conceptloader.integrations.nanotron_lm import build_dataloader
    from tests.nanotron.support import context

    _nanotron_stands_in(patch)
    loader = build_dataloader(
        _written(config, taken), seq_len=SEQ_LEN, micro_batch_size=BATCH, global_batch_size=BATCH,
        parallel_context=context(), input_pp_rank=0, output_pp_rank=0, position_ids=True, steps=taken.steps,
        model_inputs=dict.fromkeys(_further(taken, "position_ids"), "last"), run_log=taken.folder,
    )  # fmt: skip
    for batch in itertools.islice(loader, taken.steps):
        taken.take(batch, **NANOTRON_NAMES)


def nanotron_launched(config, taken, patch):
    """What the launcher's patches call in nanotron's training loop; real ones are in tests/nanotron."""
    from conceptloader.integrations.nanotron_lm import launch, losses, options
    from tests.nanotron.support import context

    _nanotron_stands_in(patch)
    options.args_class.cache_clear()
    inputs = dict.fromkeys(_further(taken, "position_ids"), "last")
    section = {"type": "conceptloader", **config, "nanotron": {"model_inputs": inputs}}
    root = {"data_stages": [{"name": "first", "data": {"dataset": section}}]}
    parsed = options.replace_in(root)["data_stages"][0]["data"]["dataset"]
    run = launch.Run()
    run.start(
        SimpleNamespace(
            data_stages=[SimpleNamespace(name="first", data=SimpleNamespace(dataset=parsed))],
            tokens=SimpleNamespace(micro_batch_size=BATCH),
            model=SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCABULARY)),
            checkpoints=SimpleNamespace(checkpoints_path=str(taken.folder)),
        ),
        None,
    )
    place = {"parallel_context": context()}
    dataset, _ = run.get_tb_datasets(
        None, config=parsed, global_batch_size=BATCH, sequence_length=SEQ_LEN, train_steps=taken.steps,
        current_iteration=0, seed=42, consumed_samples=0, consumed_tokens_per_dataset_folder={},
        last_stages_consumed_tokens_per_dataset_folder={}, **place,
    )  # fmt: skip
    loader = run.get_tb_dataloader(
        None, dataset=dataset, micro_batch_size=BATCH, num_workers=taken.workers, consumed_samples=0, input_pp_rank=0,
        output_pp_rank=0, use_position_ids=True, dataloader_pin_memory=False, **place,
    )  # fmt: skip
    if dataset.losses is not None:
        dataset.losses.means.group = None  # no groups of nanotron's
    said = taken.metrics
    patch.setattr(losses, "log", lambda what, prefix, values: said.append(values) if prefix == "data/" else None)
    for batch in itertools.islice(loader, taken.steps):
        given = taken.take(batch, **NANOTRON_NAMES)
        every = token_losses(given).requires_grad_()
        losses.masked_mean(None, every, mask_of(given).bool(), torch.float)
        dataset.update_consumption_metrics(0, BATCH, SEQ_LEN)


# Trainers.


def lightning(config, taken, patch):
    import lightning.pytorch as pl
    from lightning.pytorch.loggers.logger import DummyLogger

    from conceptloader.integrations.lightning_lm import ConceptDataModule

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch, index):
            given, data = taken.take(batch), self.trainer.datamodule
            if "dataset_id" in batch:
                data.losses.add(*added(given))
            return self.weight * 0

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Logger(DummyLogger):
        def log_metrics(self, metrics, step):
            taken.metrics.append(metrics)

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=taken.steps, max_epochs=-1, logger=Logger(),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    data = ConceptDataModule(config, micro_batch_size=BATCH, global_batch_size=BATCH, run_log=str(taken.folder))
    trainer.fit(Model(), datamodule=data)


class _Table(torch.nn.Module):
    """LOGITS as a model of transformers. taken: where its batches go."""

    def __init__(self, taken):
        from transformers import PretrainedConfig

        super().__init__()
        self.weight, self.taken, self.config = torch.nn.Parameter(torch.zeros(())), taken, PretrainedConfig()
        self.register_forward_pre_hook(self._take, with_kwargs=True)

    def _take(self, _, args, given):
        more = {name: value for name, value in given.items() if name not in ("labels", "shift_labels", "fused_lm_head")}
        self.taken.take({**more, "targets": given["shift_labels"]})

    def forward(self, input_ids, **more):
        return {"loss": self.weight * 0, "logits": LOGITS[input_ids] + self.weight * 0}

    # What TRL takes to compute the loss itself.

    def add_model_tags(self, *_): ...

    def base_model(self, input_ids, **more):
        return SimpleNamespace(last_hidden_state=torch.eye(len(LOGITS))[input_ids] + self.weight * 0)

    def get_output_embeddings(self):
        return SimpleNamespace(weight=LOGITS.T.float().contiguous(), bias=None)


def _transformers(trainer, config, taken, patch, arguments, **options):
    settings = {
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "max_steps": taken.steps,
        "per_device_train_batch_size": BATCH, "logging_steps": 1, "gradient_checkpointing": False, "bf16": False,
    }  # fmt: skip
    patch.setattr("gc.collect", lambda *_: 0)  # the Trainer calls it in each launch, which takes most of the time
    run = trainer(
        _Table(taken), arguments(str(taken.folder), **settings), train_dataset=cl.SampleDataset(config),
        model_inputs=_further(taken, "position_ids"), **options,
    )  # fmt: skip
    run.train()
    logged = [line for line in run.state.log_history if "loss" in line]
    taken.metrics += [found for line in logged if (found := {k: v for k, v in line.items() if k.startswith("data/")})]


def transformers(config, taken, patch):
    from transformers import TrainingArguments

    from conceptloader.integrations.transformers_lm import ConceptTrainer

    _transformers(ConceptTrainer, config, taken, patch, TrainingArguments)


def trl(config, taken, patch):
    from trl import SFTConfig

    from conceptloader.integrations.transformers_lm import ConceptSFTTrainer
    from tests.trainers.test_sft import tokenizer

    _transformers(ConceptSFTTrainer, config, taken, patch, SFTConfig, processing_class=tokenizer())


def accelerate(config, taken, patch):
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from conceptloader.integrations.accelerate_lm import AcceleratedLoader

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "own", False, None

        def __init__(self):
            super().__init__()

        def store_init_configuration(self, values): ...

        def log(self, values, step, **_):
            taken.metrics.append(values)

    accelerator = Accelerator(cpu=True, log_with=Tracker())
    accelerator.init_trackers("run")
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = AcceleratedLoader(accelerator, config, micro_batch_size=BATCH)
    loader.log_start(taken.folder, 0)
    with loader:
        for batch in loader:
            with accelerator.accumulate(model):
                given = taken.take(batch)
            observe(loader, given)
            if taken.done:
                break


class _OlmoBase:
    """olmo_core/data/data_loader.py: TextDataLoaderBase."""

    def __init__(self, *, collator, work_dir, global_batch_size, **_):
        self.dp_world_size, self.dp_rank = 1, 0
        self.rank_batch_size, self.batches_processed, self.tokens_processed = global_batch_size, 0, 0

    def __iter__(self):
        for batch in self._iter_batches():
            self.batches_processed += 1
            yield batch


class _OlmoConfig:
    """olmo_core/data/data_loader.py: DataLoaderConfig."""

    def __class_getitem__(cls, _):
        return cls

    @classmethod
    def register(cls, _):
        return lambda made: made


def olmo(config, taken, patch):
    module = stand_in(patch, "olmo_core.data.collator", DataCollator=lambda **_: None)
    stand_in(patch, "olmo_core.data.data_loader", DataLoaderConfig=_OlmoConfig, TextDataLoaderBase=_OlmoBase)
    stand_in(patch, "olmo_core.distributed.parallel", get_dp_process_group=None)
    stand_in(patch, "olmo_core.distributed.utils", get_rank=None, get_world_size=None)
    module = adapter(patch, "olmo_lm")
    inputs = tuple(_further(taken, "cu_seqlens", "sample_index"))
    data = module.ConceptDataLoader(
        _written(config, taken), global_batch_size=BATCH * config["seq_len"], model_inputs=inputs,
        work_dir=str(taken.folder), run_log=str(taken.folder),
    )  # fmt: skip
    data.reshuffle(1)
    for batch in data:
        if "doc_lens" in batch:
            ends = np.cumsum([n for row in batch.pop("doc_lens").tolist() for n in row if n])
            batch["cu_seqlens"] = np.array([0, *ends], np.int32)
        given = taken.take(batch, labels="targets", index="sample_index")
        observe(data.loader, given)
        if taken.done:
            break
    data.loader.close()


def torchtitan(config, taken, patch):
    from tests.trainers.test_contracts import TITANS, TitanBase, TitanSteps

    steps = TitanSteps()
    stand_in(patch, "torchtitan.observability", structured_logger=steps)
    stand_in(patch, TITANS["main"], BaseDataLoader=TitanBase)
    module = adapter(patch, "torchtitan_lm")
    options = module.ConceptDataLoader.Config(
        config=_written(config, taken), model_inputs=tuple(_further(taken, "position_ids")),
        run_log=str(taken.folder), global_batch_size=BATCH,
    )  # fmt: skip
    data = module.ConceptDataLoader(
        options, dp_world_size=1, dp_rank=0, tokenizer=None, max_context_length=SEQ_LEN,
        num_tokens_per_batch=BATCH * SEQ_LEN,
    )  # fmt: skip
    batches = iter(data)
    for steps.step in range(1, taken.steps + 1):
        inputs, targets = next(batches)
        flat = {
            name: value.unflatten(0, (BATCH, SEQ_LEN)) if value.dim() and len(value) == BATCH * SEQ_LEN else value
            for name, value in {**inputs, "targets": targets}.items()
        }
        given = taken.take(flat, input="input_ids", positions="position_ids")
        observe(data.loader, given)
    data.close()


def _written(config, taken):
    """For an entry that takes a file."""
    path = taken.folder / "run.yaml"
    path.write_text(yaml.safe_dump(dict(config)))
    return str(path)


def _further(taken, *given):
    """What the model gets only if it is asked for. given: names that it gets in any case."""
    return [name for name in taken.names if name not in ("input_ids", "targets", "labels", "loss_mask", *given)]


def stand_in(patch, module, **names):
    """Modules that have only these names, down to `module`; packages that are stood in for already stay."""
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        name = ".".join(parts[:k])
        present = sys.modules.get(name)
        if k < len(parts) and present is not None and (getattr(present, "_stands_in", False) or name == "megatron"):
            continue
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update({"_stands_in": True, **(names if k == len(parts) else {})})
        patch.setitem(sys.modules, name, made)


def adapter(patch, name):
    """The module `data` of an adapter, imported over stand-ins."""
    for loaded in [one for one in sys.modules if f"integrations.{name}" in one]:
        patch.delitem(sys.modules, loaded)
    return importlib.import_module(f"conceptloader.integrations.{name}.data")


@dataclass(frozen=True)
class Entry:
    """A way into a training.

    Attributes:
        title: On the page.
        classes: Public names that it is of.
        needs: A package without which it is not driven.
        micro: Samples of a batch.
        lag: Steps from the one after which weights are decided to the one before that from which on they hold.
        own: Names of a batch that it gives itself.
        end_known: It knows how long the run is.
    """

    title: str
    drive: Callable[..., None]
    classes: tuple[str, ...]
    needs: str = ""
    own: tuple[str, ...] = ()
    micro: int = BATCH
    lag: int = 0
    end_known: bool = False


_IN = "conceptloader.integrations."
_CONSUMED, _SHIFTED = ("consumed_samples",), ("consumed_samples", "labels", "shift_labels")
_OF_MEGATRON, _OF_NANOTRON = ("attention_mask",), ("input_mask", "label_ids", "label_mask")
_OF_OLMO = ("consumed_samples", "input_ids", "labels", "index", "instance_mask", "doc_lens", "max_doc_lens")
ENTRIES = {
    entry.title: entry
    for entry in (
        Entry("make_dataloader", _loop(cl.make_dataloader), ("conceptloader.Loader",)),
        Entry("batches", _loop(cl.batches), ("conceptloader.NumpyLoader",)),
        Entry("TrainedLoader", _loop(cl.TrainedLoader), ("conceptloader.TrainedLoader",), own=_CONSUMED),
        Entry("SampleDataset", samples, ("conceptloader.SampleDataset",)),
        Entry("GrainSource", grain, ("conceptloader.GrainSource",), micro=1),
        Entry(
            "Megatron launcher", megatron_launched, (f"{_IN}megatron_lm.install",), "megatron", _OF_MEGATRON,
            lag=1, end_known=True,
        ),
        Entry(
            "Megatron own script", megatron, (f"{_IN}megatron_lm.MegatronData",), "megatron", _OF_MEGATRON,
            end_known=True,
        ),
        Entry(
            "nanotron YAML", nanotron_launched, (f"{_IN}nanotron_lm.install",), own=_OF_NANOTRON, lag=1, end_known=True,
        ),
        Entry(
            "nanotron own script", nanotron, (f"{_IN}nanotron_lm.build_dataloader",), own=_OF_NANOTRON, end_known=True,
        ),
        Entry("Lightning", lightning, (f"{_IN}lightning_lm.ConceptDataModule",), "lightning", _CONSUMED),
        Entry("Hugging Face", transformers, (f"{_IN}transformers_lm.ConceptTrainer",), "transformers", _SHIFTED),
        Entry("TRL", trl, (f"{_IN}transformers_lm.ConceptSFTTrainer",), "trl", _SHIFTED),
        Entry("Accelerate", accelerate, (f"{_IN}accelerate_lm.AcceleratedLoader",), "accelerate", _CONSUMED),
        Entry(
            "OLMo-core", olmo, (f"{_IN}olmo_lm.ConceptDataLoader", f"{_IN}olmo_lm.ConceptDataLoaderConfig"),
            own=_OF_OLMO,
        ),
        Entry(
            "torchtitan", torchtitan, (f"{_IN}torchtitan_lm.ConceptDataLoader",),
            own=("attention_masks", "input", "positions"),
        ),
    )
}  # fmt: skip
OWN_NAMES = {entry.title: entry.own for entry in ENTRIES.values() if entry.own}
