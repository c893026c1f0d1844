"""nanotron 0.4 from PyPI: its real trainer, pipeline engine and checkpoints around build_dataloader()."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.nanotron import support
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


def test_install_refuses_another_nanotron(tmp_path: Path) -> None:
    """The wheel lacks what the patches stand for: the message says what, and what to use instead."""
    script = tmp_path / "script.py"
    script.write_text("from conceptloader.integrations import nanotron_lm\nnanotron_lm.install()\n")
    result = support.harness(tmp_path, [str(script)], env={"NANOTRON_SRC": ""})
    assert result.returncode != 0
    assert "ConfigError: cannot hook into nanotron at nanotron." in result.output
    assert "or build_dataloader() in a script of your own" in result.output
