"""Running nanotron's trainer in processes of its own, and reading back what every rank saw."""

import json
import os
import shutil
from dataclasses import dataclass, fields
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tests.ranks.launch import launch

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 240  # a run takes 10 s on a quiet machine with two cores

SEQ_LEN = 64
VOCABULARY = 250


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel sizes, and what a rank takes in a step; rank = ((pp * DP + dp) * CP + cp) * TP + tp, as nanotron numbers
    them."""

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    micro_batch: int = 2
    micro_batches: int = 2

    @property
    def ranks(self):
        return self.dp * self.pp * self.cp * self.tp

    @property
    def group(self):
        """Samples of a micro batch of all ranks."""
        return self.micro_batch * self.dp

    def coordinates(self, rank):
        """(pp, dp, cp) of a global rank."""
        rank //= self.tp
        return rank // (self.cp * self.dp), rank // self.cp % self.dp, rank % self.cp


@dataclass(frozen=True)
class Result:
    """steps[rank][step] is what record.py wrote: {"step", "loss", "batches"}."""

    layout: Layout
    returncode: int
    output: str
    steps: list[dict[int, dict[str, Any]]]

    def losses(self, first=1):
        """Exact loss by step, from whichever ranks have one (all of them must agree)."""
        losses = {}
        for rank in self.steps:
            for step, record in rank.items():
                if record["loss"] is not None and step >= first:
                    assert losses.setdefault(step, record["loss"]) == record["loss"]
        return dict(sorted(losses.items()))


def torchrun(folder, layout, args, env=None, kill=None, path=(), refused=""):
    """Start the harness. kill: (rank, step) after which that rank dies by SIGKILL. path: of modules for them. refused:
    what is said where it has to fail."""
    record = folder / "record"
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    env = env or {}
    source = {"NANOTRON_SRC": env.get("NANOTRON_SRC", os.environ.get("NANOTRON_SRC", ""))}
    ended = launch(
        "tests.nanotron.harness.launch", args, folder, ranks=layout.ranks, env={**env, "RECORD": str(record)},
        path=path, server_env=source, timeout=RUN_SECONDS, kill=f"{kill[0]}:{kill[1]}" if kill else "",
    )  # fmt: skip
    assert (ended.code == 0) == (not kill and not refused), ended.output[-4000:]
    assert refused in ended.output, ended.output[-4000:]
    steps = [_read(record / f"rank{rank}.jsonl") for rank in range(layout.ranks)]
    return Result(layout, ended.code, ended.output, steps)


def _read(path):
    if not path.exists():
        return {}
    return {record["step"]: record for record in map(json.loads, path.read_text().splitlines())}


def train(
    folder,
    name,
    *,
    dataset=None,
    checkpoints="c",
    launch=(),
    path=ROOT,
    script=(),
    kill=None,
    refused="",
    changes=(),
    **options,
):
    """The unmodified run_train.py of NANOTRON_SRC in `folder`/`name`, through conceptloader.launch with the options
    `launch`, or without.

    path: a folder of modules for it. script: one that runs it. options: of `config`, and of the layout. changes: of the
    config, by dotted keys.
    """
    sizes = {field.name: options.pop(field.name) for field in fields(Layout) if field.name in options}
    layout = Layout(**sizes)
    whole = config(folder / checkpoints, dataset, layout, **options)
    for key, value in dict(changes).items():
        *parents, last = key.split(".")
        reduce(dict.__getitem__, parents, whole)[last] = value
    (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / name / "config.yaml"
    file.write_text(yaml.safe_dump(whole, sort_keys=False))
    ours = [] if launch is None else ["-m", "conceptloader.launch", *launch]
    args = [*ours, *script, str(Path(os.environ["NANOTRON_SRC"]) / "run_train.py"), "--config-file", str(file)]
    return torchrun(folder / name, layout, args, kill=kill, path=[str(path)], refused=refused)


def config(
    checkpoints,
    dataset=None,
    layout=Layout(),
    *,
    stages=None,
    model="llama",
    steps=6,
    seq_len=SEQ_LEN,
    interval=3,
    resume=False,
    workers=0,
    layers=2,
    **checkpoint_options,
):
    """A nanotron config: config.yaml beside this file, and what is given."""
    whole = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text())
    whole["checkpoints"] |= {"checkpoint_interval": interval, "checkpoints_path": str(checkpoints)}
    whole["checkpoints"] |= {"resume_checkpoint_path": str(checkpoints) if resume else None, **checkpoint_options}
    one = {"name": "first", "start_training_step": 1, "data": data(dataset, workers)}
    whole["data_stages"] = list(stages) if stages is not None else [one]
    shape = whole["model"]["model_config"]
    shape |= {"max_position_embeddings": seq_len, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    if model == "qwen2":
        del shape["is_llama_config"]
        shape |= {"is_qwen2_config": True, "_attn_implementation": "llama3_ring_attention"}
        shape |= {"ring_attn_heads_k_stride": 1, "log_attn_probs": False}
    sizes = {"dp": layout.dp, "pp": layout.pp, "tp": layout.tp, "context_parallel_size": layout.cp}
    whole["parallelism"] |= sizes
    whole["tokens"] = {
        "sequence_length": seq_len, "train_steps": steps, "micro_batch_size": layout.micro_batch,
        "batch_accumulation_per_replica": layout.micro_batches,
    }  # fmt: skip
    return whole


def wheel_config(checkpoints, layout, **options):
    """The same for nanotron 0.4, which knows fewer keys and has no data stages."""
    whole = config(checkpoints, None, layout, **options)
    optimizer = whole["optimizer"]
    adam = {key: value for key, value in optimizer.pop("optimizer_factory").items() if key != "name"}
    del whole["data_stages"], whole["checkpoints"]["save_final_state"], whole["parallelism"]["context_parallel_size"]
    return {**whole, "optimizer": {**optimizer, **adam}, "tokenizer": {"tokenizer_name_or_path": "none"}}


def data(dataset, workers=0):
    """The `data:` section of a data stage."""
    return {"dataset": dataset, "num_loading_workers": workers, "seed": 42}


def context(**places):
    """Of nanotron's ParallelContext what the adapter asks: (rank, size) of dp, pp, cp and so on, by default (0, 1)."""

    def group(rank, size):
        return SimpleNamespace(rank=lambda: rank, size=lambda: size)

    names = ("world", "dp", "pp", "cp", "tp")
    return SimpleNamespace(**{f"{name}_pg": group(*places.get(name, (0, 1))) for name in names})
