"""A faithful record passes; any other one is caught at the first step that differs."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import conceptloader as cl
from conceptloader.config import Outputs
from conceptloader.config.schema import LoaderConfig
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.loader.batch.open import decide_layout
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.order.progress.runlog import RunLog
from conceptloader.trace import BatchRecorder, Run, audit, open_run, query, read_record, trace_step
from tests.corpora.records import write_rows
from tests.raises import raises
from tests.trace.conftest import SEQ_LEN, starts

STEPS = [9, 14, 20]  # how far each start got


@pytest.fixture
def record(run: Run, tmp_path: Path) -> Path:
    """What the ranks of three starts write; the third one is killed in step 20, which rank 1 had not begun."""
    reader = BatchReader(run.blend.order, run.blend.views, decide_layout(run.blend.views, SEQ_LEN, Outputs()))
    for launch, (start, stop) in enumerate(zip(starts(), STEPS, strict=True), 1):
        for dp_rank in range(start.dp_size):
            recorder = BatchRecorder(tmp_path, launch, dp_rank, start)
            for step in range(start.step, stop + (launch == 3 and dp_rank == 0)):
                for micro_batch, samples in enumerate(start.plan.micro_batches(step, dp_rank)):
                    recorder.write(step, micro_batch, reader.read(samples), loss=0.5)
            recorder.close()
    return tmp_path


def edit(path: Path, step: int, change: Callable[[dict[str, object]], None]) -> None:
    """Change the first line of a step."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(next(line for line in lines if line.get("step") == step))
    write_rows(path, lines)


def test_a_faithful_record_passes(run: Run, record: Path) -> None:
    launches = read_record(record)
    assert [(launch.number, launch.stop_step) for launch in launches] == [(1, 7), (2, 12), (3, None)]
    assert launches[0].lines[0].more == {"loss": 0.5}
    report = audit(run, launches)
    assert report.difference is None
    assert (report.launches, report.steps, report.incomplete) == (3, (0, 21), [20])
    assert report.repeated == (9 - 7) * 8 + (14 - 12) * 8
    assert report.samples == 9 * 8 + (14 - 7) * 8 + (20 - 12) * 12 + 4


def test_a_line_that_a_kill_cut_off_does_not_count(run: Run, record: Path) -> None:
    with open(record / "000003.000000.jsonl", "ab") as file:
        file.write(b'{"step": 21, "micro_b')
    assert audit(run, read_record(record)).steps == (0, 21)


@pytest.mark.parametrize("kind", ["samples", "datasets", "tokens", "missing", "repeated"])
def test_the_first_step_that_differs_is_named(run: Run, record: Path, kind: str) -> None:
    path = record / "000002.000001.jsonl"
    for step in (10, 11):
        if kind in ("samples", "datasets"):
            edit(path, step, lambda line: line.update({kind: [value + 1 for value in line[kind]]}))  # type: ignore
        elif kind == "tokens":
            edit(path, step, lambda line: line.update(checksums=line["checksums"][::-1]))  # type: ignore
        else:
            lines = path.read_text().splitlines(keepends=True)
            k = next(k for k, line in enumerate(lines) if f'"step":{step},' in line)
            lines[k : k + 1] = [] if kind == "missing" else [lines[k]] * 2
            path.write_text("".join(lines))
    difference = audit(run, read_record(record)).difference
    assert difference is not None
    assert (difference.launch, difference.step, difference.micro_batch, difference.dp_rank) == (2, 10, 0, 1)
    assert difference.what == kind
    assert "step 10 (start 2 of the run), micro batch 0, rank 1" in str(difference)


def test_steps_that_were_done_again_are_compared_too(run: Run, record: Path) -> None:
    edit(record / "000001.000003.jsonl", 8, lambda line: line.update(checksums=["0" * 16, "0" * 16]))
    difference = audit(run, read_record(record)).difference
    assert difference is not None
    assert (difference.launch, difference.step, difference.dp_rank) == (1, 8, 3)


def test_a_rank_that_is_not_in_the_plan(run: Run, record: Path) -> None:
    text = (record / "000002.000001.jsonl").read_text().replace('"dp_rank":1', '"dp_rank":2', 1)
    (record / "000002.000002.jsonl").write_text(text)
    difference = audit(run, read_record(record)).difference
    assert difference is not None
    assert (difference.what, difference.dp_rank, difference.expected) == ("samples", 2, None)


def test_records_that_are_none(record: Path, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="found no file <launch>"):
        read_record(tmp_path / "nothing")
    with raises(ReadError, fix="chmod u+w"):
        BatchRecorder(record, 1, 0, starts()[0])
    (record / "000003.000003.jsonl").write_text('{"step": 1}\n')
    with raises(FormatError, "line 1", "no line of a record"):
        read_record(record)
    (record / "000003.000003.jsonl").unlink()
    BatchRecorder(record, 3, 3, replace(starts()[2], micro_batch_size=2)).close()
    with raises(FormatError, expected="the same start"):
        read_record(record)


def test_lines_of_other_types(record: Path) -> None:
    path = record / "000002.000001.jsonl"
    whole = path.read_text()
    for changed, found in (
        ({"step": "9"}, "step: found '9'"),
        ({"micro_batch": 1.5}, "micro_batch: found 1.5"),
        ({"samples": 3}, "samples: found 3"),
        ({"samples": ["3", "4"]}, "samples[0]: found '3'"),
        ({"checksums": [1, 2]}, "checksums[0]: found 1"),
        ({"datasets": [0]}, "found lists of several lengths"),
    ):
        edit(path, 10, lambda line, changed=changed: line.update(changed))  # type: ignore[misc]
        with raises(FormatError, "000002.000001.jsonl, line 8", found):
            read_record(record)
        path.write_text(whole)
    path.write_text(whole.replace('"record_version":3', '"record_version":1', 1))
    with raises(FormatError, "line 1", "record_version: found 1, expected 3"):
        read_record(record)


def test_a_batch_without_what_a_record_needs(tmp_path: Path) -> None:
    recorder = BatchRecorder(tmp_path, 1, 0, starts()[0])
    with raises(ConfigError, "outputs.dataset_id"):
        recorder.write(0, 0, {"sample_index": np.zeros(1), "input_ids": np.zeros((1, 2)), "labels": np.zeros((1, 2))})


def test_a_mask_that_was_another_one(run: Run, tmp_path: Path) -> None:
    """A log is compared with the labels and the loss mask of its launch, whatever the configuration says by now."""
    was = replace(run.blend.config, outputs=Outputs(mask_document_boundaries=True), loader=LoaderConfig())
    with cl.batches(was, micro_batch_size=4, num_samples=40) as loader:
        loader.log_start(tmp_path, 0)
        recorder = BatchRecorder(tmp_path / "record", 1, 0, RunLog(tmp_path).starts[-1])
        for step, batch in enumerate(loader):
            recorder.write(step, 0, batch)
    for outputs in (Outputs(mask_document_boundaries=True), Outputs(), Outputs(ignore_index=-100)):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(replace(was, outputs=outputs).to_dict()))
        launches = read_record(tmp_path / "record")
        assert audit(open_run(tmp_path / "run.yaml", tmp_path), launches).difference is None
        found = audit(open_run(tmp_path / "run.yaml", tmp_path, planned=True), launches).difference
        assert (found is None) == outputs.mask_document_boundaries
        assert found is None or (found.step, found.what) == (0, "tokens")


def test_weights_that_are_set_in_a_launch(run: Run, tmp_path: Path) -> None:
    with cl.batches(run.blend.config, micro_batch_size=2, global_batch_size=4, num_samples=80) as loader:
        loader.log_start(tmp_path, 0)
        recorder = BatchRecorder(tmp_path / "record", 1, 0, RunLog(tmp_path).starts[-1])
        for number, batch in enumerate(loader):
            recorder.write(number // 2, number % 2, batch)
            if number == 5:
                loader.set_weights({name: 1 + 8 * k for k, name in enumerate(run.blend.config.names)})
    report = audit(open_run(log=tmp_path), read_record(tmp_path / "record"))
    assert (report.difference, report.steps, report.samples) == (None, (0, 20), 80)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = BatchRecorder(tmp_path, 1, 0, starts()[0])

    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "_file", Full())
    zeros = np.zeros((1, 2), np.int64)
    batch = {"sample_index": zeros[0], "dataset_id": zeros[0], "input_ids": zeros, "labels": zeros}
    with raises(ReadError, "000001.000000.jsonl", fix="make room on its disk"):
        recorder.write(0, 0, {name: value[:1] for name, value in batch.items()})


@pytest.mark.parametrize("last_batch", ["partial", "drop"])
def test_a_last_batch_that_is_not_full(run: Run, last_batch: Any, tmp_path: Path) -> None:
    """The run log says where the run ends: its last step has the samples that were trained, and none comes after it."""
    config = run.blend.config.to_dict()
    options: dict[str, Any] = {"micro_batch_size": 4, "global_batch_size": 16, "num_samples": 37}
    trained: list[int] = []
    for rank in range(2):
        with cl.make_dataloader(config, dp_rank=rank, dp_size=2, last_batch=last_batch, **options) as loader:
            if not rank:
                loader.log_start(tmp_path, 0)
            recorder = BatchRecorder(tmp_path / "record", 1, rank, RunLog(tmp_path).starts[-1])
            for number, batch in enumerate(loader):
                recorder.write(number // 2, number % 2, batch)
                trained += batch["sample_index"].tolist()
    logged, steps = open_run(log=str(tmp_path)), 2 if last_batch == "drop" else 3
    assert len(trained) == {"partial": 37, "drop": 32}[last_batch]
    found = [[one.sample for one in trace_step(logged, step)] for step in range(steps)]
    assert [*chain(*found)] == sorted({*trained})
    with raises(ConfigError, f"step {steps}", f"ends before step {steps}, after 37 samples"):
        trace_step(logged, steps)
    assert (
        query(logged, "from datasets", steps=(0, steps))["samples"].to_pylist()
        == query(logged, "from datasets", samples=len({*trained}))["samples"].to_pylist()
    )
    report = audit(logged, read_record(tmp_path / "record"))
    assert (report.difference, report.incomplete, report.samples) == (None, [], len(trained))
