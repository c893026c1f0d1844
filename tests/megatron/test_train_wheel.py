"""The example's training script on the megatron-core wheel alone: GPTModel, DDP, pipeline schedules, checkpoints."""

from pathlib import Path

import pytest

from conceptloader.order.partition import Partition
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.launching import ROOT, Finished, torchrun
from tests.scale import scaled

SCRIPT = ROOT / "examples/megatron/train.py"
STEPS, SAVED, BATCH, MICRO = 6, 3, 8, 2

IN_SOAK = pytest.mark.skipif(
    not scaled(0, 1), reason="tensor parallel stages get what data parallel ones do; make soak"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_datasets(tmp_path_factory.mktemp("data"))
    return write_config(folder / "data.yaml")


def train(folder: Path, config: Path, *more: str, processes: int = 2, kill_after: int = 0) -> Finished:
    script = [str(SCRIPT), "--config", str(config), "--steps", str(STEPS), "--global-batch", str(BATCH)]
    script += ["--micro-batch", str(MICRO), "--save-every", str(SAVED), *more]
    return torchrun(script, folder, processes=processes, kill_after=kill_after, timeout=120)


@pytest.fixture(scope="module")
def alone(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run of one process that all others must agree with."""
    return ended(train(tmp_path_factory.mktemp("alone") / "run", config, processes=1))


def ended(run: Finished) -> Finished:
    assert run.returncode == 0, run.errors
    return run


def planned(dp_size: int, rank: int, first: int = 0) -> list[list[int]]:
    partition = Partition(micro_batch_size=MICRO, dp_size=dp_size)
    steps = range(first * BATCH, STEPS * BATCH, BATCH)
    return [row for start in steps for row in partition.samples(start, start + BATCH, rank % dp_size).tolist()]


@pytest.mark.parametrize(
    ("layout", "dp_size", "readers", "concept_ranks"),
    [
        (["--num-workers", "1"], 2, [0, 1], [0, 1]),
        (["--pp", "2", "--recompute"], 1, [0, 1], [1]),
        pytest.param(["--tp", "2", "--no-attention-mask"], 1, [0], [0, 1], marks=[pytest.mark.soak, IN_SOAK]),
    ],
    ids=["dp2", "pp2", "tp2"],
)
def test_kill_and_resume(
    layout: list[str], dp_size: int, readers: list[int], concept_ranks: list[int], config: Path, alone: Finished,
    tmp_path: Path,
) -> None:  # fmt: skip
    save = ["--save", str(tmp_path / "checkpoints")]
    per_step = BATCH // MICRO // dp_size
    killed = train(tmp_path / "killed", config, *layout, *save, kill_after=(STEPS - 1) * per_step + 1)
    assert killed.returncode != 0
    resumed = ended(train(tmp_path / "resumed", config, *layout, *save))
    assert sorted(resumed.losses) == list(range(SAVED + 1, STEPS + 1))
    for step in set(resumed.losses) & set(killed.losses):
        assert resumed.losses[step] == killed.losses[step]
    if "--pp" not in layout:  # a pipeline stage draws initial weights of its own
        close(resumed, alone)
    assert sorted(resumed.taken) == readers
    assert sorted(resumed.given) == concept_ranks
    for rank in concept_ranks:
        assert [line["sample_index"] for line in resumed.given[rank]] == planned(dp_size, rank, SAVED)
        theirs = {tuple(line["sample_index"]): line for line in alone.given[0]}
        for line in resumed.given[rank]:
            assert line == theirs[tuple(line["sample_index"])]


def test_interleaved_schedule_and_other_sizes_on_resume(config: Path, tmp_path: Path) -> None:
    """Two stages of two chunks each; one process with other micro batches goes on from the middle of their run."""
    checkpoints = tmp_path / "checkpoints"
    save = ["--save", str(checkpoints), "--layers", "4"]
    whole = ended(train(tmp_path / "whole", config, *save, "--pp", "2", "--chunks", "2"))
    assert [line["sample_index"] for line in whole.given[1]] == planned(1, 0)
    (checkpoints / "latest.txt").write_text(f"step-{SAVED}")
    rest = ended(train(tmp_path / "rest", config, *save, "--micro-batch", "1", processes=1))
    close(rest, whole)
    assert rest.given[0][0]["sample_index"] == [SAVED * BATCH]


def close(resumed: Finished, whole: Finished) -> None:
    """The steps after the resume have the losses of the whole run, but for rounding, which early steps of Adam enlarge.

    Other samples change a loss by 1e-2.
    """
    assert sorted(resumed.losses) == list(range(SAVED + 1, STEPS + 1))
    for step, (loss,) in resumed.losses.items():
        assert float(loss) == pytest.approx(float(whole.losses[step][0]), abs=1e-4)


def test_changed_past_is_refused_before_anything_is_read(config: Path, tmp_path: Path) -> None:
    save = ["--save", str(tmp_path / "checkpoints"), "--steps", str(SAVED)]
    ended(train(tmp_path / "first", config, *save, processes=1))
    half = {name: {"path": name, "weight": 0.5} for name in ("code", "web")}
    other = write_config(config.parent / "other.yaml", datasets=half)
    refused = train(tmp_path / "refused", other, *save, "--steps", str(STEPS), processes=1)
    assert refused.returncode != 0
    assert "phases.0.weights.code: saved 3/10, now 1/2" in refused.output
    assert not refused.taken
