"""nanotron 0.4 from PyPI: its real trainer, pipeline engine and checkpoints around build_dataloader()."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conceptloader.order.progress.runlog import FILE_NAME as RUN_LOG
from tests.nanotron import support
from tests.nanotron.by_hand import losses
from tests.nanotron.conftest import WEIGHTS
from tests.nanotron.plan import Layout, Oracle, assert_seen

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SCRIPT = Path(__file__).parent / "wheel_train.py"


def train(
    folder: Path, checkpoints: Path, mixture: dict[str, Any], layout: Layout, kill: Any = None, **options: Any
) -> support.Result:
    folder.mkdir(parents=True)
    config, data = folder / "config.yaml", folder / "data.yaml"
    config.write_text(yaml.safe_dump(support.wheel_config(checkpoints, dp=layout.dp, pp=layout.pp, **options)))
    data.write_text(yaml.safe_dump(mixture))
    args = [str(SCRIPT), str(config), str(data)]
    return support.torchrun(folder, layout.dp * layout.pp, args, env={"NANOTRON_SRC": ""}, kill=kill)


@pytest.fixture
def mixture(dataset: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in dataset.items() if key != "type"} | {"seed": 42}


@pytest.mark.parametrize("layout", [Layout(dp=2), Layout(pp=2)], ids=["dp2", "pp2"])
def test_killed_and_resumed(layout: Layout, tmp_path: Path, mixture: dict[str, Any], data: dict[str, Path]) -> None:
    """Killed after step 5 and resumed from step 3: steps 4 and 5 are the same again, and 6 goes on with the plan."""
    oracle = Oracle(data, WEIGHTS, support.SEQ_LEN)
    plan = {"micro_batch": 2, "micro_batches": 2}
    killed = train(tmp_path / "k", tmp_path / "checkpoints", mixture, layout, kill=(layout.dp * layout.pp - 1, 5))
    assert killed.returncode != 0
    assert_seen(killed, oracle, layout, range(1, 6), start=0, last_may_lack=True, **plan)

    resumed = train(tmp_path / "r", tmp_path / "checkpoints", mixture, layout, resume=True)
    assert resumed.returncode == 0, resumed.output[-4000:]
    assert_seen(resumed, oracle, layout, range(4, 7), start=12 * layout.dp, **plan)
    assert [resumed.losses()[step] for step in (4, 5)] == [killed.losses()[step] for step in (4, 5)]


def test_losses_are_those_of_a_loop_by_hand(tmp_path: Path, mixture: dict[str, Any], data: dict[str, Path]) -> None:
    """Masked borders and a quarantined micro batch, over ranks and accumulated micro batches, for steps of AdamW."""
    name, _, window = Oracle(data, WEIGHTS, support.SEQ_LEN).samples([9])[0]
    first = window * support.SEQ_LEN + 1
    config = {**mixture, "outputs": {"loss_mask_borders": True}}
    config["quarantine"] = [{"dataset": name, "tokens": [first, first + 1]}]
    result = train(tmp_path / "t", tmp_path / "c", config, Layout(dp=2), steps=3, save_initial_state=True)
    assert result.returncode == 0, result.output[-4000:]
    by_hand = losses(tmp_path / "c" / "0", {**config, "seq_len": support.SEQ_LEN}, 4, packed=False, interleaved=True)
    expected = {step: next(by_hand) for step in (1, 2, 3)}
    assert result.losses() == pytest.approx(expected, rel=1e-5)
    masks = [batch["label_mask"] for rank in result.steps for batch in rank[2]["batches"]]
    assert 0 < sum(not any(row) for mask in masks for row in mask) < len(masks) * 2


def test_ranks_that_differ_are_refused(tmp_path: Path, mixture: dict[str, Any], data: dict[str, Path]) -> None:
    """Tokens and labels would come from different samples: the stage of rank 1 has other weights and other data."""
    other = json.loads(json.dumps(mixture))
    other["datasets"]["web"] = {"path": str(data["code"]), "weight": 0.5}
    for rank, config in enumerate((mixture, other)):
        (tmp_path / f"{rank}.yaml").write_text(yaml.safe_dump(config))
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, runpy, sys\nsys.argv[2] = f'{tmp_path}/{{os.environ[\"RANK\"]}}.yaml'\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(support.wheel_config(tmp_path / "c", pp=2, steps=2)))
    result = support.torchrun(tmp_path, 2, [str(script), str(config), ""], env={"NANOTRON_SRC": ""})
    assert result.returncode != 0, result.output[-4000:]
    assert "open the training data: ranks differ, expected the same on all of them" in result.output
    assert "configuration.datasets.web.weight: rank(s) 0: 0.6; rank(s) 1: 0.5" in result.output
    assert "order.members.web.stream_fingerprint: rank(s) 0:" in result.output
    assert not (tmp_path / "c" / RUN_LOG).exists()


def test_install_refuses_another_nanotron(tmp_path: Path) -> None:
    """The wheel lacks what the patches stand for: the message says what, and what to use instead."""
    script = tmp_path / "script.py"
    script.write_text("from conceptloader.integrations import nanotron_lm\nnanotron_lm.install()\n")
    result = support.harness(tmp_path, [str(script)], env={"NANOTRON_SRC": ""})
    assert result.returncode != 0
    assert "ConfigError: cannot hook into nanotron at nanotron." in result.output
    assert "or build_dataloader() in a script of your own" in result.output
