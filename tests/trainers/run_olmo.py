"""A run of OLMo-core, for tests.ranks."""

import json
import os
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.distributed.utils import init_distributed
from olmo_core.nn.attention.backend import TorchAttentionBackend
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module.transformer import TransformerDataParallelConfig, TransformerTrainModuleConfig

from conceptloader.integrations.olmo_lm import ConceptDataLoader, ConceptDataLoaderConfig
from tests.trainers.values import SEQ_LEN, VOCABULARY

LOGGED = ("train/CE loss", "optim/total grad norm")


@dataclass
class Larger(Callback):
    """Doubles the global batch, as BatchSizeScheduler does."""

    at: int = -1

    def post_step(self):
        if self.trainer.global_step == self.at:
            self.trainer.data_loader.global_batch_size *= 2


@dataclass
class Losses(Callback):
    """Writes down what was logged of each step."""

    path: str = ""

    def log_metrics(self, step, metrics):
        with open(self.path, "a") as file:
            file.write(json.dumps({name: metrics.get(name) for name in LOGGED}) + "\n")


def tiny():
    """OLMo-core's own model."""
    return TransformerConfig.llama_like(d_model=16, vocab_size=VOCABULARY, n_layers=1, n_heads=2).build(
        init_device="cpu"
    )


def separate_documents():
    """Documents do not see each other in torch's attention either, as in OLMo-core's backends for GPUs."""
    forward = TorchAttentionBackend.forward

    def of_documents(self, qkv, cu_doc_lens=None, max_doc_len=None, **options):
        if cu_doc_lens is None:
            return forward(self, qkv, **options)
        rows = [one.flatten(0, 1)[None] for one in qkv]
        parts = [tuple(one[:, a:b] for one in rows) for a, b in pairwise(cu_doc_lens.tolist())]
        return torch.cat([forward(self, part, **options) for part in parts], 1).view_as(qkv[0])

    TorchAttentionBackend.forward = of_documents


def trained(launch):
    """OLMo-core's own training of a model that stays as it is, and a record of what it had. With an option `tables` its
    attention matters."""
    if launch.options.get("tables"):
        separate_documents()
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=launch.micro * SEQ_LEN, max_sequence_length=SEQ_LEN, optim=AdamWConfig(lr=0.0),
        max_grad_norm=1e9, dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp),
    ).build(tiny(), device=torch.device("cpu"))  # fmt: skip
    with torch.no_grad():
        for parameter in module.model.parameters():
            parameter *= 20
    if dist.get_rank() == 0:
        torch.save(module.model.state_dict(), os.path.join(launch.out, "model.pt"))
    train_batch = module.train_batch

    def recording(batch, dry_run=False):
        if not dry_run:
            labelled = (batch["labels"] != -100).any(1)  # a last batch is padded
            launch.record(module.trainer.global_step - 1, batch["index"][labelled])
        train_batch(batch, dry_run)

    module.train_batch = recording
    return module


def train(launch):
    init_distributed(backend="gloo")
    options = launch.options
    config = ConceptDataLoaderConfig(
        config=launch.config, global_batch_size=options.get("tokens", launch.batch * SEQ_LEN), work_dir=launch.out,
        epoch_samples=options.get("epoch_samples"), run_log=os.path.join(launch.out, "checkpoint"),
        allow_changed=tuple(options.get("allow_changed", ())),
    )  # fmt: skip
    loader = config.build(dp_process_group=dist.group.WORLD)
    if launch.bare:
        # What a DataLoaderBase is by itself: nothing of the order in the state, epochs by their number.
        loader.__class__ = type(
            "Bare", (ConceptDataLoader,), {"state_dict": lambda s: {}, "load_state_dict": lambda s, x: None}
        )
    trainer = TrainerConfig(
        save_folder=os.path.join(launch.out, "checkpoints"), work_dir=launch.out, device="cpu", save_overwrite=True,
        max_duration=Duration.steps(launch.steps), async_bookkeeping=False, metrics_collect_interval=1,
        callbacks={
            "losses": Losses(path=os.path.join(launch.out, f"losses.{launch.number}.{dist.get_rank()}.jsonl")),
            "larger": Larger(at=options.get("larger_at", -1)),
            "checkpointer": CheckpointerCallback(
                save_interval=1000, fixed_steps=[launch.save_at], pre_train_checkpoint=False, save_async=False,
            ),
        },
    ).build(trained(launch), loader)  # fmt: skip
    if not launch.resume:
        trainer.load_strategy = "never"
    else:
        trainer.load_checkpoint(os.path.join(launch.out, "checkpoints", f"step{launch.first}"))
    trainer.fit()
