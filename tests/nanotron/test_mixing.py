"""`mixing` under the unmodified run_train.py: what a run learns, killed and resumed. Needs NANOTRON_SRC."""

import json

import pytest

from conceptloader.order.progress.runlog import FILE_NAME
from tests.nanotron import support

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("nanotron_src")]


def set_there(folder):
    """Sample -> the weights that a run set there, as the log has it at last."""
    lines = map(json.loads, (folder / FILE_NAME).read_text().splitlines())
    return {line["at"]: line["weights"] for line in lines if line["kind"] == "weights"}


def test_a_mixture_that_learns(tmp_path, data):
    datasets = {name: {"path": str(path), "weight": 1} for name, path in data.items()}
    learns = {"type": "conceptloader", "datasets": datasets, "mixing": {"odm": {}}}
    workers = support.config(tmp_path / "w", learns, pp=3)  # of which one rank needs no data
    workers["data_stages"][0]["data"]["num_loading_workers"] = 1
    refused = support.run_train(tmp_path / "workers", workers)
    assert "mixing.odm: found num_loading_workers: 1" in refused.output  # torchrun ends the others when one has raised
    whole = support.run_train(tmp_path / "whole", support.config(tmp_path / "a", learns, pp=2, resume=True))
    assert whole.returncode == 0, whole.output[-4000:]
    learned = set_there(tmp_path / "a")
    assert len(learned) > 2
    config = support.config(tmp_path / "b", learns, pp=2, resume=True)
    assert support.run_train(tmp_path / "killed", config, kill=(1, 5)).returncode != 0
    resumed = support.run_train(tmp_path / "resumed", config)
    assert resumed.returncode == 0, resumed.output[-4000:]
    assert resumed.losses() == whole.losses(4)
    assert set_there(tmp_path / "b") == learned
    other = support.config(tmp_path / "b", {**learns, "mixing": {"doremi": {}}}, pp=2, steps=8, resume=True)
    assert "mixing: found doremi, expected odm" in support.run_train(tmp_path / "other", other).output
    replay = {**learns, "mixing": None, "replay": str(tmp_path / "a")}
    replayed = support.run_train(tmp_path / "replayed", support.config(tmp_path / "c", replay, pp=2))
    assert replayed.losses() == whole.losses()
    assert not set_there(tmp_path / "c")
