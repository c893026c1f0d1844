"""nanotron 0.4 from PyPI: its real trainer, pipeline engine and checkpoints around build_dataloader()."""

import json
from pathlib import Path

import pytest
import yaml

from conceptloader.order.progress.runlog import FILE_NAME as RUN_LOG
from tests.nanotron import support
from tests.nanotron.by_hand import losses
from tests.nanotron.plan import assert_seen
from tests.nanotron.support import Layout

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SCRIPT = Path(__file__).parent / "wheel_train.py"
WHEEL = {"NANOTRON_SRC": ""}


def train(folder, checkpoints, mixture, layout, kill=None, **options):
    folder.mkdir(parents=True)
    config, data = folder / "config.yaml", folder / "data.yaml"
    config.write_text(yaml.safe_dump(support.wheel_config(checkpoints, layout, **options)))
    data.write_text(yaml.safe_dump(mixture))
    return support.torchrun(folder, layout, [str(SCRIPT), str(config), str(data)], env=WHEEL, kill=kill)


@pytest.fixture
def mixture(dataset):
    return {key: value for key, value in dataset.items() if key != "type"} | {"seed": 42}


def test_killed_and_resumed_on_one_rank(tmp_path, mixture, oracle):
    """Two ranks killed after step 5, and resumed as one from step 3, which sees the plan. Losses are those of a loop by
    hand: masked borders, a quarantined micro batch, AdamW."""
    checkpoints = tmp_path / "checkpoints"
    config = {**mixture, "outputs": {"mask_document_boundaries": True}}
    first = [(name, window * support.SEQ_LEN + 1) for name, _, window in oracle.samples([8, 9])]
    config["exclude"] = [{"dataset": name, "tokens": [token, token + 1]} for name, token in first]
    killed = train(tmp_path / "k", checkpoints, config, Layout(dp=2), kill=(1, 5), save_initial_state=True)
    assert [len(rank) for rank in killed.steps] in ([5, 5], [4, 5])
    masks = [batch["label_mask"] for rank in killed.steps for batch in rank[2]["batches"]]
    assert [any(map(any, mask)) for mask in masks] == [False, True, True, True]

    resumed = train(tmp_path / "r", checkpoints, config, Layout(micro_batches=4), resume=True)
    assert_seen(resumed, oracle, range(4, 7))
    steps = losses(checkpoints / "0", {**config, "seq_len": support.SEQ_LEN}, 4, packed=False, interleaved=True)
    by_hand = {step: next(steps) for step in range(1, 7)}
    assert killed.losses() == pytest.approx({step: by_hand[step] for step in killed.losses()}, rel=1e-5)
    assert resumed.losses() == pytest.approx({step: by_hand[step] for step in (4, 5, 6)}, rel=1e-5)


def test_two_pipeline_stages(tmp_path, mixture, oracle):
    result = train(tmp_path / "t", tmp_path / "c", mixture, Layout(pp=2), steps=2)
    assert_seen(result, oracle, range(1, 3))


def test_ranks_that_differ_are_refused(tmp_path, mixture, data):
    """Tokens and labels would come from different samples: the stage of rank 1 has other weights and other data.

    Before that, install() refuses this nanotron, which lacks what the patches stand for.
    """
    other = json.loads(json.dumps(mixture))
    other["datasets"]["web"] = {"path": str(data["code"]), "weight": 0.5}
    for rank, config in enumerate((mixture, other)):
        (tmp_path / f"{rank}.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "script.py").write_text(DIFFERING.format(folder=tmp_path, script=SCRIPT))
    config = tmp_path / "config.yaml"
    layout, script = Layout(pp=2), str(tmp_path / "script.py")
    config.write_text(yaml.safe_dump(support.wheel_config(tmp_path / "c", layout, steps=2)))
    refused = "REFUSED cannot hook into nanotron at nanotron."
    result = support.torchrun(tmp_path, layout, [script, str(config), ""], env=WHEEL, refused=refused)
    assert "open the training data: found values that differ between the ranks" in result.output
    assert "configuration.datasets.web.weight: rank(s) 0: 0.6; rank(s) 1: 0.5" in result.output
    assert "order.members.web.stream_fingerprint: rank(s) 0:" in result.output
    assert not (tmp_path / "c" / RUN_LOG).exists()


DIFFERING = """
import os, runpy, sys
from conceptloader.errors import ConfigError
from conceptloader.integrations import nanotron_lm
try:
    nanotron_lm.install()
except ConfigError as error:
    print("REFUSED", error.path, flush=True)
sys.argv[2] = "{folder}/" + os.environ["RANK"] + ".yaml"
runpy.run_path("{script}", run_name="__main__")
"""
