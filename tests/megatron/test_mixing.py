"""`mixing` under a script of one's own (MEGATRON_SRC): what a run learns, broken off and resumed; replayed."""

import pytest

from tests.corpora.for_megatron import write_config
from tests.megatron.pretraining import DP2, OWN, PP2, SAVED, needs_checkout, same_losses
from tests.mixing.learned import set_there

pytestmark = needs_checkout


@pytest.mark.parametrize("layout", [DP2, PP2], ids=["data", "pipeline"])
def test_a_mixture_that_learns(pretrain, layout, data, tmp_path, monkeypatch):
    def train(name, mixing, workers="0", *more, **options):
        config = write_config(data / "mixing.yaml", **mixing)
        return pretrain(name, layout, "--num-workers", workers, *more, config=config, script=OWN, **options)

    odm = {"mixing": {"odm": {}}}
    train("unobserved", odm, refused="observe: found no losses")
    monkeypatch.setenv("LEARNS", "1")
    whole = train("whole", odm, save="a")
    learned = set_there(tmp_path / "a")
    assert len(learned) > 2
    step, again = ("--ckpt-step", SAVED), {"save": "b", "load": "a"}
    resumed = train("resumed", odm, "0", *step, **again)
    same_losses(resumed, whole)
    found = set_there(tmp_path / "b")
    assert found == {at: weights for at, weights in learned.items() if at in found}
    assert max(found) == max(learned)
    train("workers", odm, "1", *step, **again, refused="--num-workers 1")
    train("other", {"mixing": {"doremi": {}}}, "0", *step, **again, refused="mixing: found doremi, expected odm")
    monkeypatch.delenv("LEARNS")
    replayed = train("replayed", {"replay": str(tmp_path / "a")}, "1", save="c")
    same_losses(replayed, whole, first=1)
    assert not set_there(tmp_path / "c")
