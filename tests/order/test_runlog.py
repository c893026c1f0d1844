import json
import os
from dataclasses import replace

import pytest

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.progress.runlog import FILE_NAME, History, RunLog, RunStart
from conceptloader.order.schedule import BatchSchedule
from tests.raises import raises

from .test_spec import spec

SPEC = spec()


def start(step=0, consumed=0, batch=8, **changes):
    values = {
        "step": step,
        "consumed": consumed,
        "batch": ((0, batch),),
        "micro_batch_size": 2,
        "dp_size": 2,
        "scheme": "contiguous",
        "seq_len": 16,
        "spec": SPEC.hash,
    }
    return RunStart(**{**values, **changes})


@pytest.fixture
def log(tmp_path):
    log = RunLog(tmp_path)
    log.append(start(), SPEC)
    return log


def test_round_trip_and_specs_are_stored_once(tmp_path):
    log, other = RunLog(tmp_path), spec(seed=8)
    assert log.starts == []
    ramp = BatchSchedule.ramp_up(8, 8, 100, 32).rule
    log.append(start(batch=4), SPEC)
    log.append(replace(start(3, 12), batch=ramp), SPEC)
    log.append(start(5, 28, spec=other.hash, data_stage="anneal", scheme="strided", seq_len=None), other)
    log.append(start(6, 36), SPEC)
    again = RunLog(tmp_path)
    assert again.starts == log.starts
    assert [(one.step, one.consumed, one.data_stage) for one in again.starts[2:]] == [(5, 28, "anneal"), (6, 36, None)]
    assert [again.spec(one) for one in again.starts] == [SPEC, SPEC, other, SPEC]
    kinds = [json.loads(line)["kind"] for line in log.path.read_text().splitlines()]
    assert kinds == ["spec", "start", "start", "spec", "start", "start"]


def test_samples_passed_over_or_repeated_by_a_restart(tmp_path, caplog):
    log = RunLog(tmp_path)
    for one in (start(), start(10, 88), start(20, 160)):
        log.append(one, SPEC)
    assert [r.message.split(": ", 1)[1] for r in caplog.records] == [
        "step 10 was to start at 80 consumed samples, this run starts it at 88; samples between are skipped",
        "step 20 was to start at 168 consumed samples, this run starts it at 160; samples between are repeated",
    ]
    assert log.history.places(83) == []
    assert [place.step for place in log.history.places(161)] == [19, 20]


def test_a_log_that_a_run_of_another_order_takes_over(tmp_path, caplog):
    log, other = RunLog(tmp_path), spec(seed=8)
    log.append(start(), SPEC)
    log.append(start(), SPEC)  # killed before its first checkpoint
    log.append(start(10, 80), SPEC)
    assert not caplog.records
    log.append(start(spec=other.hash), other)
    assert "a run of another order begins at sample 0" in caplog.text
    assert "from step 0 on" in caplog.text


def test_any_cut_of_the_last_write_is_survived(log, tmp_path, caplog):
    first = log.path.stat().st_size
    other = spec(seed=8)
    log.append(start(10, 80, spec=other.hash), other)
    whole = log.path.read_bytes()
    for cut in (first, first + 1, *range(first + 2, len(whole), 11), len(whole) - 2, len(whole) - 1):
        log.path.write_bytes(whole[:cut] + b"\0" * (cut % 3 if whole[:cut][-1:] != b"\n" else 0))
        caplog.clear()
        again = RunLog(tmp_path)
        assert again.starts == [start(time=log.starts[0].time)]
        complete = whole[:cut].endswith(b"\n")
        assert ("last line is incomplete" in caplog.text) == (not complete)
        again.append(start(12, 96, spec=other.hash), other)
        healed = RunLog(tmp_path)
        assert healed.starts == again.starts
        assert [s.step for s in healed.starts] == [0, 12]
        assert healed.spec(healed.starts[1]) == other
        assert log.path.read_bytes()[:first] == whole[:first]


def test_lines_of_another_process_are_kept(tmp_path):
    ours, theirs = RunLog(tmp_path), RunLog(tmp_path)
    theirs.append(start(), SPEC)
    ours.append(start(10, 80), SPEC)
    assert [one.step for one in RunLog(tmp_path).starts] == [0, 10]


OF_SPEC = {"kind": "spec", "log_version": 3, "hash": SPEC.hash, "spec": SPEC.to_dict()}
DAMAGED = """
nonsense
[]
1
{"log_version": 3}
{"kind": "start", "log_version": 3}
{"kind": "stop", "log_version": 3}
{"kind": "spec", "log_version": 3}
"""


@pytest.mark.parametrize(
    "line",
    [
        *DAMAGED.strip().splitlines(),
        *({**OF_SPEC, **wrong} for wrong in ({"more": 1}, {"hash": "0" * 32}, {"spec": {}})),
        OF_SPEC | {"spec": SPEC.to_dict() | {"seed": 9}},
    ],
)
def test_damaged_lines_are_named(log, tmp_path, line):
    log.path.write_text(log.path.read_text() + (line if isinstance(line, str) else json.dumps(line)) + "\n")
    with pytest.raises(FormatError, match=f"{FILE_NAME}, line 3: found a line that cannot be read"):
        RunLog(tmp_path)


def test_logs_of_other_versions_are_refused(log, tmp_path):
    """Releases before wrote 1 in starts alone."""
    text = log.path.read_text()
    for other in ('"log_version":1,', '"log_version":2,', ""):
        log.path.write_text(text.replace('"log_version":3,', other))
        with raises(FormatError, f"{FILE_NAME}, line 1", "log_version", "version 3", fix="move it away"):
            RunLog(tmp_path)


def test_no_field_of_a_start_may_be_missing(log, tmp_path):
    of_spec, line = log.path.read_text().splitlines()
    for name in json.loads(line):
        less = {key: value for key, value in json.loads(line).items() if key != name}
        log.path.write_text(f"{of_spec}\n{json.dumps(less)}\n")
        with raises(FormatError, "line 2"):
            RunLog(tmp_path)


def test_what_a_log_does_not_have(log, tmp_path):
    log.path.write_text(log.path.read_text().split("\n", 1)[1])
    again = RunLog(tmp_path)
    with raises(FormatError, found="no order spec"):
        again.spec(again.starts[0])
    later = History([start(10, 80)])
    assert later.places(79) == []
    with raises(ConfigError, found="begins at step 10"):
        later.range_of(9)
    empty = RunLog(tmp_path / "none")
    with raises(ConfigError, found="no start of a run"):
        _ = empty.history
    with raises(ConfigError, found="start.spec"):
        empty.append(start(), spec(seed=8))
    assert not empty.path.exists()


def test_a_failed_write_leaves_the_log_as_it_was(log, monkeypatch):
    before = log.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with raises(ReadError, found="cannot write the run log: short write"):
        log.append(start(1, 8), SPEC)
    assert log.path.read_bytes() == before
    assert len(log.starts) == 1


def test_unreadable_places(tmp_path):
    folder = tmp_path / "not" / "yet"
    RunLog(folder).append(start(), SPEC)
    assert len(RunLog(folder).starts) == 1
    folder = tmp_path / "link"
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(tmp_path / "nowhere" / FILE_NAME)
    with raises(ReadError, found="cannot write"):
        RunLog(folder).append(start(), SPEC)
    (tmp_path / FILE_NAME).mkdir()
    with raises(ReadError, found="cannot read"):
        RunLog(tmp_path)
