"""`replay: DIRECTORY`: what a run has learned is a plan, carried out to the sample wherever it is read."""

import json

import conceptloader as cl
from conceptloader.config import load_config
from conceptloader.errors import ConfigError
from tests.mixing import learned
from tests.mixing.learned import BATCH, SAMPLES
from tests.raises import raises


def test_what_cannot_be_set(tmp_path, monkeypatch):
    """Is an error at launch. Replayed samples are shown by tests/oracle and tests/entries."""
    config = learned.run(tmp_path)
    (tmp_path / "run.yaml").write_text(json.dumps({**config, "replay": "log"}))
    assert load_config(tmp_path / "run.yaml").replay == str(tmp_path / "log")
    for names in (("easy", "hard"), ("easy", "hard", "middle", "more")):
        datasets = {name: config["datasets"].get(name, config["datasets"]["easy"]) for name in names}
        with raises(
            ConfigError, "replay", "a run of the datasets easy, hard, middle", f"configuration: {', '.join(names)}"
        ):
            cl.open_blend({**config, "datasets": datasets})
    others = {name: {**entry, "weight": 1 + k} for k, (name, entry) in enumerate(config["datasets"].items())}
    with raises(ConfigError, "replay", "'hard': 1, 'middle': 1}, and the datasets have {'easy': 1, 'hard': 2"):
        cl.open_blend({**config, "datasets": others})
    with raises(ConfigError, "replay", "'easy': 1"):
        cl.open_blend({**config, "weights": "by_size", "datasets": {n: {"path": e["path"]} for n, e in others.items()}})
    for path, found, change in (
        ("replay", "with mixing", {"mixing": {"odm": {}}}),
        ("replay", "''", {"replay": ""}),
        ("phases", "with replay", {"phases": [{"at": 9, "weights": {"easy": 1}}]}),
        ("replay", "no run", {"replay": str(tmp_path / "nowhere")}),
    ):
        with raises(ConfigError, path, found):
            cl.open_blend({**config, **change})
    limited = {**config, "datasets": {n: {**e, "max_epochs": 0.01} for n, e in config["datasets"].items()}}
    with raises(ConfigError, ".max_epochs"):
        next(iter(cl.make_dataloader(limited, micro_batch_size=BATCH, num_samples=SAMPLES)))
    monkeypatch.setattr("conceptloader.config.blend.MAX_WEIGHTS", 26)
    with raises(ConfigError, "replay", ", 27 weights in all", "at most 26"):
        cl.open_blend(config)
