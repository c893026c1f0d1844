"""A run that moves through all trainers: each takes over from the checkpoint of the last, and resumes from its own."""

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from tests.trainers.matrix import BATCH, STEPS, configs, errors, launches, run, seen
from tests.trainers.test_matrix import there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BEGUN, SAVED = 2, 5  # steps of the plain loader; steps of each trainer, up to its last checkpoint
CHECKPOINTS = {
    "lightning": "last.ckpt",
    "transformers": f"checkpoint-{SAVED}",
    "accelerate": "state",
    "olmo": f"checkpoints/step{SAVED}",
    "torchtitan": f"checkpoint/step-{SAVED}",
}
# Both ranks are killed in their fifth step; one goes on from the checkpoint after the third.
SIZES = [{"micro": 3, "accumulate": 2, "kill": "all:4", "steps": 6}, {"ranks": 1, "accumulate": 2}]


def test_a_run_moves_through_all_trainers_and_back(tmp_path):
    """Every sample is trained once, in the order of the run, whoever trains it."""
    config, _ = configs(tmp_path / "data")
    plain = cl.make_dataloader(config, micro_batch_size=BATCH)
    at, checkpoint = BEGUN * BATCH, tmp_path / "plain.json"
    checkpoint.write_text(json.dumps(plain.state_dict_at(at)))
    trainers = [*filter(there, CHECKPOINTS)]
    for trainer in trainers:
        moved = Path(config).with_name(f"{trainer}.yaml")
        moved.write_text(yaml.safe_dump({**yaml.safe_load(Path(config).read_text()), "continue_from": str(checkpoint)}))
        made = launches(tmp_path / trainer, str(moved), SIZES)
        output = run(f"run_{trainer}", [made])
        assert errors(made) == [], output[-2000:]
        trained = {**seen(made[0]), **seen(made[1])}
        assert min(seen(made[1])) == made[1].first == 3
        assert trained == {k: Counter(range(at + k * BATCH, at + (k + 1) * BATCH)) for k in range(STEPS)}, trainer
        at, checkpoint = at + SAVED * BATCH, tmp_path / trainer / CHECKPOINTS[trainer]
    assert trainers
    plain.load_state_dict(cl.find_state(checkpoint))
    assert next(iter(plain))["sample_index"].tolist() == list(range(at, at + BATCH))
    plain.close()
