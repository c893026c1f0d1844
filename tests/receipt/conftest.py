"""A run with receipts: three datasets, three phases, a skip, exclusions, and starts at other ranks and batch sizes."""

import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import yaml

import conceptloader as cl
from conceptloader.receipts import RunStatement, prepare, state_run

SAMPLES = 4080


class Made(NamedTuple):
    """folder: with run.yaml, data/NAME and log, the directory of the run log. stated: the run."""

    folder: Path
    stated: RunStatement

    @property
    def config(self) -> Path:
        return self.folder / "run.yaml"


def build(folder: Path, name: str, documents: int, **options: Any) -> None:
    """A dataset of random texts of 0 to 300 bytes, in shards of a few of them."""
    draw, lines = random.Random(name), []
    for number in range(documents):
        text = "".join(draw.choice("abcdefgh ") for _ in range(draw.choice([0, 3, 20, 100, 300])))
        lines.append(json.dumps({"id": f"{name}-{number}", "text": text}) + "\n")
    (folder / f"{name}.jsonl").write_text("".join(lines))
    given = {"tokenizer": "bytes", "shard_input_bytes": 6000, **options}
    cl.build(folder / f"{name}.jsonl", folder / "data" / name, **given)
    prepare(folder / "data" / name)


def configure(folder: Path, **more: Any) -> dict[str, Any]:
    """Write run.yaml."""
    config: dict[str, Any] = {
        "seq_len": 16,
        "seed": 7,
        "block": 8,
        "datasets": {name: {"path": f"data/{name}"} for name in ("web", "code", "books")},
        "phases": [
            {"start": 0, "weights": {"web": 0.5, "code": 0.3, "books": 0.2}},
            {"start": 901, "weights": {"code": 1, "books": 3}},
            {"start": 1800, "weights": {"web": 2, "code": 0.1, "books": 3}},
        ],
        "skip": [{"at": 500, "count": 137}],
        "exclude": [{"at": 700, "ids": ["web-7", "code-3"]}],
        "loader": {"batch_log": True},
        **more,
    }
    if not config["phases"] and "order" not in more:
        config["weights"] = "by_size"
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return config


def train(folder: Path, state: Any, ranks: int, size: int, steps: int, step: int | None = None) -> dict[str, str]:
    """Steps of `size` samples on some ranks, from a state on, logged. Returns: the state after them."""
    options = {"dp_size": ranks, "micro_batch_size": 2, "global_batch_size": size}
    loaders = [cl.batches(folder / "run.yaml", dp_rank=rank, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        loader.log_start(folder / "log", (loader.steps or 0) if step is None else step)
    batches = [iter(loader) for loader in loaders]
    for _ in range(steps * size // (2 * ranks)):
        for one in batches:
            next(one)
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    return state


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("receipts")
    for name, documents in (("web", 60), ("code", 80), ("books", 500)):
        build(folder, name, documents)
    configure(folder)
    state = train(folder, None, ranks=2, size=8, steps=50)
    train(folder, state, ranks=2, size=8, steps=3)  # stopped: these steps are done again
    state = train(folder, state, ranks=2, size=8, steps=40)
    train(folder, state, ranks=3, size=24, steps=140, step=90)
    return Made(folder, state_run(folder / "run.yaml", folder / "log", SAMPLES))


@pytest.fixture(scope="session")
def verifier(checkout: Path) -> Iterator[ModuleType]:
    """examples/receipt/verify_receipt.py, loaded where conceptloader and numpy cannot be imported."""
    path = checkout / "examples/receipt/verify_receipt.py"
    spec = importlib.util.spec_from_file_location("verify_receipt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verify_receipt"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["verify_receipt"]
