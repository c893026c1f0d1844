"""Running nanotron's trainer in processes of its own, and reading back what every rank saw."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tests.ranks.launch import launch

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 240  # a run takes 10 s on a quiet machine with two cores

SEQ_LEN = 64
VOCABULARY = 250


@dataclass(frozen=True)
class Result:
    """steps[rank][step] is what record.py wrote: {"step", "loss", "batches"}."""

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


def torchrun(folder, processes, args, env=None, kill=None, path=()):
    """Start the harness with `processes` ranks. kill: (rank, step) after which that rank dies by SIGKILL. path: of
    modules for them."""
    record = folder / "record"
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    env = env or {}
    source = {"NANOTRON_SRC": env.get("NANOTRON_SRC", os.environ.get("NANOTRON_SRC", ""))}
    ended = launch(
        "tests.nanotron.harness.launch", args, folder, ranks=processes, env={**env, "RECORD": str(record)}, path=path,
        server_env=source, timeout=RUN_SECONDS, kill=f"{kill[0]}:{kill[1]}" if kill else "",
    )  # fmt: skip
    return Result(ended.code, ended.output, [_read(record / f"rank{rank}.jsonl") for rank in range(processes)])


def _read(path):
    if not path.exists():
        return {}
    return {record["step"]: record for record in map(json.loads, path.read_text().splitlines())}


def run_train(folder, config, kill=None, launch=(), path=ROOT):
    """The unmodified run_train.py of NANOTRON_SRC, through conceptloader.launch with the options `launch`, or without.

    path: a folder of modules for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    parallel = config["parallelism"]
    processes = parallel["dp"] * parallel["pp"] * parallel["tp"] * parallel["context_parallel_size"]
    script = str(Path(os.environ["NANOTRON_SRC"]) / "run_train.py")
    ours = [] if launch is None else ["-m", "conceptloader.launch", *launch]
    args = [*ours, script, "--config-file", str(file)]
    return torchrun(folder, processes, args, kill=kill, path=[str(path)])


def config(
    checkpoints,
    dataset=None,
    *,
    stages=None,
    model="llama",
    dp=1,
    pp=1,
    tp=1,
    cp=1,
    steps=6,
    micro_batch=2,
    micro_batches=2,
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
    whole["parallelism"] |= {"dp": dp, "pp": pp, "tp": tp, "context_parallel_size": cp}
    whole["tokens"] = {
        "sequence_length": seq_len, "train_steps": steps, "micro_batch_size": micro_batch,
        "batch_accumulation_per_replica": micro_batches,
    }  # fmt: skip
    return whole


def wheel_config(checkpoints, **options):
    """The same for nanotron 0.4, which knows fewer keys and has no data stages."""
    whole = config(checkpoints, **options)
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


def copy_checkpoint(source, step, target):
    """The checkpoint of one step alone, and the run log up to now, as a run killed after that step leaves them."""
    target.mkdir(parents=True)
    shutil.copytree(source / str(step), target / str(step))
    (target / "latest.txt").write_text(str(step))
    for log in source.glob("*.jsonl"):
        shutil.copy(log, target)
