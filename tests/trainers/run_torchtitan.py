"""A run of torchtitan, for tests.ranks: its own main, with a configuration of ours.

$CONCEPTLOADER_TORCHTITAN is a checkout of its main branch, which needs, beside torch: grain, torch_checkpointing,
datasets, spmd_types, tyro, tokenizers, safetensors, tensorboard, einops, pillow. Without it: the release that is
installed.
"""

import json
import os
import sys
import types
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.distributed.tensor import DTensor

import conceptloader as cl
from tests.trainers import tables, titan_on_cpu
from tests.trainers.values import SEQ_LEN

if "CONCEPTLOADER_TORCHTITAN" in os.environ:
    sys.path.insert(0, os.environ["CONCEPTLOADER_TORCHTITAN"])
titan_on_cpu.install()

import torchtitan.train  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.models.llama3.model import Llama3Model  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from conceptloader.integrations.torchtitan_lm import ConceptDataLoader  # noqa: E402
from conceptloader.integrations.torchtitan_lm.data import FLAT, BaseDataLoader  # noqa: E402

NOW = {}  # the launch, and the step that is being trained


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "trainers" / "torchtitan.md").read_text("utf-8")
concept_llama = types.ModuleType("concept_llama")
sys.modules["concept_llama"] = concept_llama
CODE, RELEASE_SIZES = (block.split("```")[0] for block in PAGE.split("```py\n")[1:])
sizes, after = CODE.index("    training.max_context_length"), CODE.index("    config.dataloader")
exec(CODE if FLAT else CODE[:sizes] + RELEASE_SIZES + CODE[after:], concept_llama.__dict__)


class Model(concept_llama.ConceptLlama):
    """The page's, which records what it gets."""

    @dataclass(kw_only=True, slots=True)
    class Config(concept_llama.ConceptLlama.Config):
        pass

    def forward(self, tokens, positions=None, attention_masks=None, *, sample_index, **further):
        assert tokens.shape == positions.shape == further["concepts_span_index"].shape
        assert tokens.ndim == (1 if FLAT else 2)
        assert further["concepts_ids"].shape[0] == len(sample_index) == tokens.numel() // SEQ_LEN
        NOW["launch"].record(NOW["step"], sample_index, "train" if self.training else "val0")
        return super().forward(tokens, positions, attention_masks, sample_index=sample_index, **further)


class Recording(Trainer):
    """Says which step is being trained; with an option `tables`, compares losses of a model whose attention matters."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def train(self):
        launch = NOW["launch"]
        cl.metrics.on_step(lambda metrics: launch.record(metrics.step, [metrics.consumed_samples], "metrics"))
        if launch.options.get("tables"):
            self.compare(launch)
        else:
            super().train()

    def compare(self, launch):
        model = self.model_parts[0]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 5  # a checkpoint has it, too
        found = {"losses": [], "norms": [], "validation": []}

        def log(step, loss, most, norm, **_):
            found["losses"].append(loss)
            found["norms"].append(norm)

        self.metrics_processor.log = log
        self.metrics_processor.log_validation = lambda loss, step, **_: found["validation"].append(loss)
        super().train()
        state = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}
        if dist.get_rank() == 0:
            plain = self.model_config.build()
            plain.init_weights(buffer_device=None)
            plain.load_state_dict(state)

            def forward(tokens, positions):
                if FLAT:
                    tokens, positions = tokens[0], positions[0]
                logits = plain(tokens, positions, plain.get_attention_masks(positions=positions))
                return logits[None] if FLAT else logits

            tables.torchtitan(launch, plain, forward, found)

    def post_dataloading_process(self, input_dict, labels):
        NOW["step"] = self.step - 1
        return super().post_dataloading_process(input_dict, labels)


class Bare(BaseDataLoader):
    """make_dataloader's Loader without the adapter's state."""

    @dataclass(kw_only=True, slots=True)
    class Config(ConceptDataLoader.Config):
        pass

    def __init__(self, config, **context):
        self.inner = ConceptDataLoader(config, **context)

    def __iter__(self):
        return iter(self.inner)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def tokenizer(folder):
    """One that knows every token of the model."""
    folder.mkdir(exist_ok=True)
    words = {f"w{number}": number for number in range(2048)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "w1", "eos_token": "w2"}))
    return str(folder)


def debug():
    """What --module and --config name."""
    launch = NOW["launch"]
    config = concept_llama.run(launch.config, launch.valid or "")
    model = config.model_spec.model
    options = {**launch.options, "allow_changed": tuple(launch.options.get("allow_changed", ()))}
    values, names = options.pop("tables", False), concept_llama.MODEL_INPUTS
    kind = Llama3Model if values else Model
    config.model_spec.model = kind.Config(**{f.name: getattr(model, f.name) for f in fields(model) if f.init})
    if values:
        config.model_spec.model.layers = config.model_spec.model.layers[:1]
        names = config.validator.dataloader.model_inputs = ()
        config.loss = config.loss.loss_fn  # in one piece: the chunked one wants a last layer
        config.optimizer = default_adamw(lr=0.0)
        config.training.mixed_precision_param = "float32"
    data = (Bare if launch.bare else ConceptDataLoader).Config
    config.checkpoint.exclude_from_loading = options.pop("exclude", [])
    log = os.path.join(launch.out, "checkpoint")  # as the page has it
    config.dataloader = data(
        config=launch.config, model_inputs=names, global_batch_size=launch.batch, run_log=log, **options
    )
    config.validator.enable, config.validator.steps, config.validator.freq = launch.valid is not None, -1, 2
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"  # with spmd_types FSDP over 2 ranks needs a nightly torch
    if FLAT:
        config.training.num_tokens_per_microbatch_per_dp_rank = launch.micro * SEQ_LEN
        config.training.num_tokens_per_train_step = launch.batch * SEQ_LEN
    else:
        config.training.local_batch_size, config.training.global_batch_size = launch.micro, launch.batch
    config.training.steps = launch.steps
    config.checkpoint.enable, config.checkpoint.interval = True, launch.save_at
    config.checkpoint.load_step = launch.first or -1
    config.dump_folder, config.hf_assets_path = launch.out, tokenizer(launch.path / "tokenizer")
    return Recording.Config(**{f.name: getattr(config, f.name) for f in fields(config) if f.init})


def train(launch):
    NOW["launch"] = launch
    torch.set_num_threads(1)
    sys.argv = ["train.py", "--module", "tests.trainers.run_torchtitan", "--config", "debug"]
    torchtitan.train.main()
