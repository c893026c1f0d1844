"""The matrix: trainers x ways of stopping and going on, and what the models' forwards have to have seen."""

from pathlib import Path

import yaml

from conceptloader.testing import random_documents, write_dataset
from tests.ranks import launch as ranks
from tests.ranks.launch import Launch, launch

STEPS, BATCH = 7, 12
SIZES = "SIGKILL and other sizes"
MATRIX = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def configs(folder):
    """A training and a validation configuration; beside them other.yaml, with another weight, and seed.yaml, with
    another seed."""
    folder.mkdir(exist_ok=True)
    write_dataset(folder / "data", random_documents(60, seed=1, vocab_size=250))
    common = {"seq_len": 16, "datasets": {"data": {"path": "data"}}, "outputs": {"sample_index": True}}
    common["tracks"] = {"concepts": {"layout": "padded"}}
    other = {"datasets": {"data": {"path": "data", "weight": 2.0}}}
    for name, change in {"run": {}, "other": other, "seed": {"seed": 6}}.items():
        config = {**common, "loader": {"prefetch_batches": 3}, **change}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    valid = {"data": {"path": "data", "split": [0.9, 1]}}
    (folder / "valid.yaml").write_text(yaml.safe_dump({**common, "datasets": valid, "order": "sequential"}))
    return str(folder / "run.yaml"), str(folder / "valid.yaml")


def launches(folder, config, specs):
    """The launches of a run: each but the last stops behind its checkpoint, and the next goes on from that."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, spec in enumerate(specs):
        last = number == len(specs) - 1
        steps = STEPS if last else 2 * number + 4
        spec = {**spec, "config": str(Path(config).with_name(spec.get("config", Path(config).name)))}
        common = {"ranks": 2, "micro": 6, "accumulate": 1, "steps": steps, "save_at": 2 * number + 3}
        made.append(Launch(**{**common, "out": str(folder), "number": number, "resume": number > 0, **spec}))
    return made


def run(module, chains):
    """All launches, from one process that has imported the trainer. Gives what they printed."""
    output, before = "", ""
    if module in ("run_lightning", "run_transformers", "run_accelerate"):
        module, before = "together", f"{module}."
    for one in (one for chain in chains for one in chain):
        how = {"function": f"{before}train", "ranks": one.ranks, "number": one.number, "kill": one.kill}
        output += launch(f"tests.trainers.{module}", one, one.path, **how).output
    return output


def errors(chain):
    """Of ranks that failed, launch by launch."""
    return [path.read_text() for path in sorted(chain[0].path.glob("error.*"))]


def seen(one, kind="train"):
    """Step -> samples that the ranks' models had."""
    return ranks.seen(one.path, one.number, kind)


def judge(chain):
    """(skipped, repeated) samples of the run as it counts."""
    return ranks.judge(chain[0].path, len(chain), STEPS, BATCH)
