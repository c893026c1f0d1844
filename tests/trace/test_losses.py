"""The loss log: what outlives a SIGKILL, what counts after a restart, and what is said to be behind a loss."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, explain, open_run, read_losses, trace_sample
from conceptloader.trace import losses as losses_module
from tests.raises import raises
from tests.trace.conftest import SEQ_LEN, starts


def as_rows(found: Any) -> list[tuple[int, int, int, float]]:
    return [(int(a), int(b), int(c), float(d)) for a, b, c, d in found.tolist()]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("most", [1 << 20, 5])
def test_what_was_written_is_read(tmp_path: Path, kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_module, "_ROWS", most)
    expected = []
    log = cl.trace.LossLog(tmp_path, 3)
    for step in range(10):
        samples, values = np.arange(4) + 4 * step, np.linspace(1, 2, 4, dtype=np.float32) * step
        given = torch.tensor(values, requires_grad=True) if kind == "torch" else values
        log.write(step, {"sample_index": torch.tensor(samples) if kind == "torch" else samples}, given)
        expected += [(step, int(s), -1, float(v)) for s, v in zip(samples, values, strict=True)]
        assert as_rows(read_losses(tmp_path, 0, 99)) == expected  # at once, not only when it is closed
    log.close()
    assert as_rows(read_losses(tmp_path, 0, 99)) == expected
    assert as_rows(read_losses(tmp_path, 3, 5)) == expected[12:20]
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}
    assert sum(pyarrow.parquet.read_table(path).num_rows for path in tmp_path.iterdir()) == 40


def test_losses_of_labels_and_of_spans(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values, mask = rng.random((2, 8)), np.array([[1] * 8, [1, 1, 0, 0, 1, 1, 1, 1]])
    spans = np.array([[[0, 1], [2, 5], [0, 0]], [[0, 4], [4, 8], [8, 9]]])
    batch = {"sample_index": np.array([7, 9]), "loss_mask": mask, "t_spans": spans, "t_num_spans": np.array([2, 2])}
    with cl.trace.LossLog(tmp_path, track="t") as log:
        log.write(5, batch, values)
    found = {(sample, span): loss for _, sample, span, loss in as_rows(read_losses(tmp_path, 5, 6))}
    assert found.pop((7, -1)) == pytest.approx(values[0].mean())
    assert found.pop((9, -1)) == pytest.approx((values[1] * mask[1]).sum() / 6)
    # The loss of a token is that of the position before it; the first token of a window has none.
    expected = {(7, 1): values[0, 1:4].mean(), (9, 0): values[1, 0:3].mean(), (9, 1): values[1, 3:7].mean()}
    assert found == pytest.approx(expected)


KILLED = """
import sys, numpy, conceptloader as cl
from conceptloader.trace import losses
losses._ROWS = 100  # which are packed before the kill
log = cl.trace.LossLog(sys.argv[1], int(sys.argv[2]))
for step in range(10**9):
    log.write(step, {"sample_index": numpy.arange(8) + 8 * step}, numpy.full(8, step, "f4"))
    print(step, flush=True)
"""


@pytest.mark.slow
def test_nothing_is_lost_at_a_sigkill(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "l"), str(rank)], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    done, seen = [], []
    for process in processes:
        assert process.stdout is not None
        seen.append(b"".join(process.stdout.readline() for _ in range(20)))
    for process, before in zip(processes, seen, strict=True):
        os.kill(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        done.append(int((before + out).decode().rsplit("\n", 2)[-2]))
    assert min(done) > 10
    found = as_rows(read_losses(tmp_path / "l", 0, 10**9))
    steps = {step for step, *_ in found}
    assert steps >= set(range(max(done) + 1))
    assert max(steps) <= max(done) + 1
    assert all(loss == step for step, _, _, loss in found)
    assert len(list((tmp_path / "l").glob("*.parquet"))) >= 2
    for journals in (1, 1):  # what rank 1 left is taken over, once
        cl.trace.LossLog(tmp_path / "l", 1).close()
        assert len(list((tmp_path / "l").glob("*.journal"))) == journals
        assert as_rows(read_losses(tmp_path / "l", 0, 10**9)) == found


FORKED = """
import os, sys, time, numpy, conceptloader as cl
log = cl.trace.LossLog(sys.argv[1])
log.write(0, {"sample_index": [1, 2]}, numpy.array([0.5, 0.25]))
if not os.fork():  # as of a DataLoader, which may outlive its parent
    print(os.getpid(), flush=True)  # what runs after a fork has run in it
time.sleep(60)
"""


def test_a_log_that_a_living_process_writes_is_not_taken_over(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", FORKED, tmp_path], stdout=subprocess.PIPE)
    assert first.stdout is not None
    child = int(first.stdout.readline())
    try:
        with pytest.raises(ConfigError, match=rf"dp_rank 0 .* there \(process {first.pid} on .*; end it, or give"):
            cl.trace.LossLog(tmp_path)
        assert len(list(tmp_path.glob("*.journal"))) == 1
        cl.trace.LossLog(tmp_path, 1).close()
        first.kill()
        first.wait()  # not communicate: the fork keeps the pipe open
        with cl.trace.LossLog(tmp_path) as log:  # what the fork of a killed process holds is no log
            os.kill(child, 0)
            with pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
                cl.trace.LossLog(tmp_path)
            log.write(1, {"sample_index": [3]}, np.array([0.75]))
    finally:
        first.kill()
        os.kill(child, signal.SIGKILL)
    cl.trace.LossLog(tmp_path).close()  # once more, by the same process
    assert as_rows(read_losses(tmp_path, 0, 2)) == [(0, 1, -1, 0.5), (0, 2, -1, 0.25), (1, 3, -1, 0.75)]
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}


def test_a_full_disk_is_an_error_and_leaves_whole_rows(tmp_path: Path) -> None:
    with cl.trace.LossLog(tmp_path) as log:
        log.write(0, {"sample_index": [1, 2]}, np.array([0.5, 0.25]))
        most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * losses_module.LOSS.itemsize + 5, most[1]))
        try:
            with pytest.raises(ReadError, match="cannot be written: No space left"):
                log.write(1, {"sample_index": [3, 4]}, np.array([0.5, 0.25]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        log.write(2, {"sample_index": [5, 6]}, np.array([0.75, 1]))
        expected = [(0, 1, -1, 0.5), (0, 2, -1, 0.25), (2, 5, -1, 0.75), (2, 6, -1, 1)]
        assert as_rows(read_losses(tmp_path, 0, 3)) == expected


def test_a_row_that_was_cut_off_and_a_file_that_is_none(tmp_path: Path) -> None:
    log = cl.trace.LossLog(tmp_path)
    log.write(0, {"sample_index": [1, 2]}, np.array([0.5, 0.25]))
    (journal,) = tmp_path.glob("*.journal")
    with open(journal, "ab") as file:
        file.write(b"\1\2\3")
    assert len(read_losses(tmp_path, 0, 1)) == 2
    (tmp_path / "9.0.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(FormatError, match=r"9\.0\.parquet: .* expected a part of a loss log"):
        read_losses(tmp_path, 0, 1)
    with pytest.raises(ReadError, match="found no loss log"):
        read_losses(tmp_path / "nothing", 0, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReadError, match="cannot begin a loss log"):
        cl.trace.LossLog(tmp_path / "file")


def test_batches_that_do_not_fit(tmp_path: Path) -> None:
    for batch, losses, track, place in (
        ({}, np.zeros(2), None, "outputs.sample_index"),
        ({"sample_index": [1, 2]}, np.zeros(3), None, "losses"),
        ({"sample_index": [1, 2]}, np.zeros(2), "concepts", "track"),
    ):
        with cl.trace.LossLog(tmp_path, track=track) as log, raises(ConfigError, place):
            log.write(0, batch, losses)


def loss_of(sample: int, launch: int = 0) -> float:
    """Some documents are hard."""
    return 1 + sample % 7 / 10 + launch


def record(run: Run, folder: Path) -> dict[int, dict[int, float]]:
    """What three starts of the run, with their ranks, log; later starts do steps again, with other losses. Returns: by
    step, of what counts."""
    counts: dict[int, dict[int, float]] = {}
    for launch, (start, stop) in enumerate(zip(starts(), [9, 14, 20], strict=True)):
        logs = [cl.trace.LossLog(folder, dp_rank) for dp_rank in range(start.dp_size)]
        for step in range(start.step, stop):
            counts[step] = {}
            for dp_rank, log in enumerate(logs):
                for samples in start.plan.micro_batches(step, dp_rank):
                    values = [loss_of(sample, launch) for sample in samples.tolist()]
                    log.write(step, {"sample_index": samples}, np.array(values))
                    counts[step].update(zip(samples.tolist(), values, strict=True))
        for log in logs[: None if launch else 2]:  # of the first start, two ranks are killed
            log.close()
    return counts


def test_what_is_behind_a_loss_equals_a_walk(run: Run, tmp_path: Path) -> None:
    counts = record(run, tmp_path)
    for step in (0, 8, 13, 19):
        found = explain(run, tmp_path, step, top=10**6, baseline=5)
        before = [loss for s in range(max(0, step - 5), step) for loss in counts[s].values()]
        now = counts[step]
        assert found["loss"] == pytest.approx(np.mean(list(now.values())))
        assert found["usual"] == (pytest.approx(np.mean(before)) if before else None)
        assert (found["samples"], found["logged"]) == (len(now), len(now))
        level = np.mean(before or list(now.values()))
        expected, by_concept = {}, {}
        for sample, loss in now.items():
            one = trace_sample(run, sample)
            for part in one.documents:
                inputs = part.inputs or (0, 0)
                excess = (loss - level) * (inputs[1] - inputs[0]) / SEQ_LEN / len(now)
                expected[sample, part.document] = excess
                touching = [s for s in one.spans["concepts"] if s.start < inputs[1] and s.end > inputs[0]]
                for name in {name for span in touching for name in span.names or ()} if part.inputs else ():
                    by_concept[name] = by_concept.get(name, 0) + excess
        assert {(d["sample"], d["document"]): d["excess"] for d in found["documents"]} == pytest.approx(
            expected, rel=1e-4, abs=1e-7
        )
        values = [one["excess"] for one in found["documents"]]
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(found["loss"] - level, abs=1e-6)
        assert {c["concept"]: c["excess"] for c in found["concepts"]} == pytest.approx(by_concept, rel=1e-4, abs=1e-6)
    with pytest.raises(ConfigError, match="step 25: found no loss"):
        explain(run, tmp_path, 25)
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        explain(Run(blend=run.blend), tmp_path, 3)


@pytest.mark.parametrize("step", [0, 13])
def test_a_loss_that_is_no_number_comes_first_and_spoils_no_other(run: Run, tmp_path: Path, step: int) -> None:
    counts = record(run, tmp_path)
    usual = explain(run, tmp_path, step)["usual"]
    broken = list(counts[step])[2]
    with cl.trace.LossLog(tmp_path) as log:
        log.write(step, {"sample_index": np.array([broken])}, np.array([np.nan]))
        if step:
            log.write(step - 1, {"sample_index": np.array([next(iter(counts[step - 1]))])}, np.array([np.inf]))
    found = explain(run, tmp_path, step, top=10**6)
    assert found["usual"] == (pytest.approx(usual, abs=0.05) if step else None)
    hard = [one["sample"] for one in found["documents"] if np.isnan(one["excess"])]
    assert set(hard) == {broken}
    assert [one["sample"] for one in found["documents"][: len(hard)]] == hard
    values = [one["excess"] for one in found["documents"][len(hard) :]]
    assert values == sorted(values, reverse=True)


def test_one_line_in_a_trainer_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dataset(tmp_path / "d", random_documents(60, seed=3))
    config = {"seq_len": 32, "datasets": {"d": {"path": path}}, "tracks": {"concepts": {}}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "log").mkdir()
    expected: dict[str, list[float]] = {}
    for dp_rank in range(2):
        loader = cl.make_dataloader(tmp_path / "run.yaml", dp_rank=dp_rank, dp_size=2, micro_batch_size=4)
        loader.log_start(tmp_path / "log", 0)
        with loader, cl.trace.LossLog(tmp_path / "losses", dp_rank, track="concepts") as log:
            for step, batch in zip(range(6), loader, strict=False):
                hard = batch["sample_index"] == 42
                losses = torch.ones(4, 32) + 3 * hard[:, None] + torch.arange(32) / 100
                log.write(step, batch, losses)
                if step == 5:
                    for row, sample in enumerate(batch["sample_index"].tolist()):
                        for span in trace_sample(open_run(tmp_path / "run.yaml"), sample).spans["concepts"]:
                            part = losses[row, max(span.start - 1, 0) : span.end - 1]
                            if len(part):
                                for name in span.names or ():
                                    expected.setdefault(name, []).append(float(part.mean()))
    folders = {"--run-log": tmp_path / "log", "--losses": tmp_path / "losses"}
    command = ["trace", str(tmp_path / "run.yaml"), *(str(word) for pair in folders.items() for word in pair)]
    assert main([*command, "--step", "5", "--json", "--top", "100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["sample"] for one in found["documents"] if one["excess"] > 0.01} == {42}
    for one in found["concepts"]:
        losses_of = expected.get(one["concept"])
        assert one["span_loss"] == (pytest.approx(np.mean(losses_of)) if losses_of else None)
    assert main([*command, "--step", "5", "--top", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step 5: loss 1.53")
    assert "8 of 8 samples were logged" in out
    assert main([*command, "--step", "7"]) == 2
