"""loader.batch_log: what each rank yields is recorded, and audit finds whatever differs from the order."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.batch.digest import sha256_of
from conceptloader.batch_log.record import FOLDER, BatchLog, begin_record
from conceptloader.cli import main
from conceptloader.errors import ConfigError, ReadError
from conceptloader.torch.trained import POSITION, EvaluationLoader, TrainedLoader
from conceptloader.trace import audit, open_run, read_record
from tests.corpora.records import write_rows
from tests.raises import raises


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for seed, name in enumerate("ab"):
        cl.testing.write_dataset(tmp_path / name, cl.testing.random_documents(80, seed=seed))
    given = {
        "seq_len": 16,
        "datasets": {name: {"path": name, "weight": 1} for name in "ab"},
        "tracks": {"concepts": {"layout": "ragged"}},
        "outputs": {"mask_document_boundaries": True, "ignore_index": -100},
        "exclude": [{"at": 20, "dataset": "a", "ids": [cl.open_dataset(tmp_path / "a").document_id(3)]}],
        "loader": {"batch_log": True},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


RANK = """
import sys
import conceptloader as cl
config, log, rank, ranks, micro_batches, step, position = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
sizes = {"dp_rank": rank, "dp_size": ranks, "micro_batch_size": 2, "global_batch_size": 12}
loader = cl.batches(config, consumed_samples=position, **sizes)
loader.log_start(log, step)
for _, batch in zip(range(micro_batches), loader):
    pass
"""


def launch(config: Path, ranks: int, micro_batches: int, step: int) -> None:
    """A start of the run: a process for each rank, which know nothing of each other."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(config), str(config.parent / "log")]
            + [str(number) for number in (rank, ranks, micro_batches, step, step * 12)]
        )
        for rank in reversed(range(ranks))
    ]
    assert [process.wait() for process in processes] == [0] * ranks


def audited(config: Path, planned: bool = False) -> Any:
    log = config.parent / "log"
    return audit(open_run(config, log, planned=planned), read_record(log / FOLDER), digests=True)


@pytest.mark.slow
def test_ranks_that_are_processes(config: Path) -> None:
    launch(config, 2, 3 * 5, 0)
    launch(config, 2, 3 * 2, 4)  # at the same step on the same ranks, again
    launch(config, 2, 3 * 4 + 1, 4)
    launch(config, 3, 2 * 5, 8)
    report = audited(config)
    assert report.difference is None
    assert (report.launches, report.steps, report.incomplete) == (4, (0, 13), [])
    assert main(["trace", "--audit", str(config), "--run-log", str(config.parent / "log")]) == 0


def run(config: Path, steps: int = 6, **options: Any) -> None:
    with cl.make_dataloader(
        config, micro_batch_size=2, global_batch_size=4, num_samples=4 * steps, **options
    ) as loader:
        loader.log_start(config.parent / "log", 0)
        for _ in loader:
            pass


def test_a_digest_is_of_what_is_trained(config: Path) -> None:
    kept: list[dict[str, Any]] = []
    run(config, batch_transform=lambda batch: kept.append({**batch}) or batch)
    (launched,) = read_record(config.parent / "log" / FOLDER)
    assert [(line.step, line.micro_batch) for line in launched.lines] == [(k // 2, k % 2) for k in range(12)]
    by_samples = {tuple(batch["sample_index"].tolist()): batch for batch in kept}
    assert any(not batch["loss_mask"].all() for batch in kept)
    for line in launched.lines:
        batch = by_samples[line.samples]
        assert line.more["sha256"] == sha256_of(batch)
        for name, change in (("input_ids", 1), ("labels", 1), ("loss_mask", -1.0), ("dataset_id", 1)):
            other = {**batch, name: batch[name].clone()}
            other[name].view(-1)[-1] += change
            assert sha256_of(other) != line.more["sha256"], name
        as_numpy = {name: np.asarray(batch[name]).astype("i4") for name in ("sample_index", "dataset_id")}
        assert sha256_of({**batch, **as_numpy}) == line.more["sha256"]


def drop(line: dict[str, Any]) -> None:
    del line["sha256"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda line: line.update(sha256="0" * 64), "sha256"),
        (drop, "sha256"),
        (lambda line: line.update(checksums=line["checksums"][::-1]), "tokens"),
        (lambda line: line.update(samples=[0, 1]), "samples"),
        (None, "missing"),
    ],
)
def test_what_was_changed_is_found(config: Path, change: Callable[[dict[str, Any]], None] | None, what: str) -> None:
    run(config)
    path = config.parent / "log" / FOLDER / "000001.000000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert audited(config).difference is None
    if change is None:
        del lines[6]
    else:
        change(lines[6])
    write_rows(path, lines)
    difference = audited(config).difference
    assert (difference.step, difference.micro_batch, difference.dp_rank, difference.what) == (2, 1, 0, what)
    assert main(["trace", "--audit", str(config), "--run-log", str(config.parent / "log")]) == 1


def test_a_mask_that_was_another_one(config: Path) -> None:
    """Tokens and labels are the same, only what has a loss is not."""
    text = config.read_text()
    config.write_text(text.replace("ignore_index: -100", "ignore_index: null"))
    run(config)
    assert audited(config).difference is None
    config.write_text(config.read_text().replace("mask_document_boundaries: true", "mask_document_boundaries: false"))
    assert audited(config).difference is None
    assert audited(config, planned=True).difference.what == "sha256"


def test_what_is_read_again_for_new_weights(config: Path) -> None:
    with cl.batches(config, micro_batch_size=2, global_batch_size=4, num_samples=80) as loader:
        loader.log_start(config.parent / "log", 0)
        for number, _ in enumerate(loader):
            if number == 5:
                loader.set_weights({"a": 1, "b": 9})
    report = audited(config)
    assert (report.difference, report.steps, report.samples) == (None, (0, 20), 80)


def test_a_loop_that_goes_on_and_a_state_in_a_step(config: Path) -> None:
    options = {"micro_batch_size": 2, "global_batch_size": 8}
    with cl.batches(config, **options) as loader:
        loader.log_start(config.parent / "log", 0)
        for _ in range(2):
            for number, _ in enumerate(loader):
                if number == 5:
                    break
    report = audited(config)
    assert (report.difference, report.samples, report.steps) == (None, 24, (0, 3))


def test_the_last_batch_in_part(config: Path) -> None:
    log = config.parent / "log"
    with cl.batches(config, micro_batch_size=2, global_batch_size=4, num_samples=7, last_batch="partial") as loader:
        loader.log_start(log, 0)
        assert len(list(loader)) == 4
    lines = read_record(log / FOLDER)[0].lines
    assert [(line.step, line.micro_batch) for line in lines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(lines[-1].samples) == [6]


def test_without_a_run_log_or_by_a_reader_that_has_none(config: Path) -> None:
    loader = cl.make_dataloader(config, micro_batch_size=2)
    with raises(ConfigError, "loader.batch_log", "no run log", fix="log_start"):
        next(iter(loader))
    assert loader.consumed_samples == 0
    loader.close()
    with raises(ConfigError, "loader.batch_log", "SampleDataset"):
        cl.SampleDataset(config)[0]
    with raises(ConfigError, "--audit", "no --record and no --run-log"):
        main_raises(["trace", "--audit", str(config)])


def main_raises(command: list[str]) -> None:
    from conceptloader.cli import make_parser
    from conceptloader.cli.output import Output
    from conceptloader.trace.commands import audit as module

    module.show_audit(make_parser(command[0]).parse_args(command), Output(False))


def test_a_disk_that_is_full(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that could not be recorded is not yielded."""
    loader = cl.batches(config, micro_batch_size=2)
    loader.log_start(config.parent / "log", 0)
    batches = iter(loader)
    next(batches)

    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    (log,) = (one for one in loader.run.observing() if isinstance(one, BatchLog))
    monkeypatch.setattr(log._record, "_file", Full())
    with raises(ReadError, FOLDER):
        next(batches)
    assert loader.consumed_samples == 2
    loader.close()


def test_numbers_of_starts(config: Path, tmp_path: Path) -> None:
    loader = cl.batches(config, micro_batch_size=2, dp_rank=0, dp_size=2)
    start = loader.run.launch()[0]
    first = [begin_record(tmp_path / "r", rank, start) for rank in (1, 0)]
    again = [begin_record(tmp_path / "r", rank, start) for rank in (0, 1)]
    assert [record.path.name for record in first] == ["000001.000001.jsonl", "000001.000000.jsonl"]
    assert [record.path.name for record in again] == ["000002.000000.jsonl", "000002.000001.jsonl"]
    other = cl.batches(config, micro_batch_size=2, dp_rank=0, dp_size=3)
    assert begin_record(tmp_path / "r", 2, other.run.launch()[0]).path.name == "000003.000002.jsonl"


def test_a_trainer_that_did_not_train_all_it_was_given(config: Path) -> None:
    loader = TrainedLoader(config, micro_batch_size=2, global_batch_size=4)
    loader.log_start(config.parent / "log", 0)
    for trained in (8, 16):
        for batch in loader:
            if batch[POSITION] == trained + 2:
                break
        loader.acknowledge(trained)
    loader.close()
    report = audited(config)
    assert (report.difference, report.launches, report.steps, report.incomplete) == (None, 2, (0, 5), [4])


def test_no_evaluation_is_recorded(config: Path) -> None:
    given = yaml.safe_load(config.read_text()) | {"order": "sequential"}
    given["datasets"] = {name: {"path": str(config.parent / name)} for name in "ab"}
    with raises(ConfigError, "loader.batch_log", "an evaluation"):
        EvaluationLoader(given, micro_batch_size=2)
