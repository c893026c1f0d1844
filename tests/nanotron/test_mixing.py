"""`mixing` under the unmodified run_train.py: what a run learns, killed and resumed. Needs NANOTRON_SRC."""

from functools import partial

import pytest

from tests.mixing.learned import set_there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_mixture_that_learns(train, tmp_path, data):
    datasets = {name: {"path": str(path), "weight": 1} for name, path in data.items()}
    learns = {"type": "conceptloader", "datasets": datasets, "mixing": {"odm": {}}}
    # Of three stages one rank needs no data. torchrun ends the others when one has raised.
    train("workers", dataset=learns, pp=3, workers=1, refused="mixing.odm: found num_loading_workers: 1")
    train = partial(train, pp=2)
    whole = train("whole", dataset=learns, checkpoints="a", resume=True)
    learned = set_there(tmp_path / "a")
    assert len(learned) > 2
    train("killed", dataset=learns, checkpoints="b", resume=True, kill=(1, 5))
    resumed = train("resumed", dataset=learns, checkpoints="b", resume=True)
    assert resumed.losses() == whole.losses(4)
    assert set_there(tmp_path / "b") == learned
    other, refused = {**learns, "mixing": {"doremi": {}}}, "mixing: found doremi, expected odm"
    train("other", dataset=other, checkpoints="b", steps=8, resume=True, refused=refused)
    replay = {**learns, "mixing": None, "replay": str(tmp_path / "a")}
    assert train("replayed", dataset=replay).losses() == whole.losses()
    assert not set_there(tmp_path / "c")
