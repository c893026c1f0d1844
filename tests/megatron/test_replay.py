"""`replay: DIRECTORY` in Megatron-LM: phases as any, with worker processes, and no part of evaluation."""

import pytest

from conceptloader.integrations.megatron_lm.past import MEGATRON_LM
from tests.megatron.stock import data_of, dataset_config
from tests.mixing import learned

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.mark.parametrize("key", ["replay", "mixing"])
def test_evaluation_is_that_of_sample_0(key, tmp_path):
    config = learned.run(tmp_path, (1, 4, 9), seed=5, temperature=2)
    if key == "mixing":
        config |= {"replay": None, "mixing": {"odm": {}}}
    else:
        config["datasets"] = {name: {"path": entry["path"]} for name, entry in config["datasets"].items()}
    data = data_of(config, dataset_config(32), (8, 8, 0), split="80,20,0", entry=MEGATRON_LM)
    ((first,),) = [valid.blend.spec.segments for valid in data.valid]
    assert first.weights["hard"] / first.weights["easy"] == pytest.approx(2)  # of which the root was taken once
    whole = data_of(config, dataset_config(32), (8, None, 0), split="80,20,0", entry=MEGATRON_LM)  # --full-validation
    assert whole.valid[0].blend.spec.order == "sequential"
