"""Documents taken out of a run: what may change at a resume, what is said, what is refused. That samples and answers
are without them is what tests/oracle and trace/test_answers.py compare."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.config.mask import NEVER, Mask
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.runlog import History
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, open_run
from conceptloader.trace.subset import SubsetOptions, make_ranges, make_subsets
from tests.corpora.small import written
from tests.raises import cells, raises

SEQ_LEN = 24
EXCLUDE = [
    {"at": 60, "ids": ["web-3", "books-7", "web-11", "nobody-1"]},
    {"at": 30, "dataset": "web", "ids": ["web-11", "web-12"]},
    {"at": 120, "dataset": "books", "token_file": "fifth.txt"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exclude")
    for number, name in enumerate(("web", "books", "code")):
        raw = random_documents(60, seed=number, mean_length=40, prefix=name)
        write_dataset(folder / name, raw, shards=2)
    make_ranges(folder / "books", folder / "fifth.txt", SubsetOptions(where="document % 5 = 0"))
    make_subsets(folder / "code", folder / "some", SubsetOptions(where="document > 10"))
    return folder


def config(folder, exclude, **more):
    names = {"web": "web", "books": "books", "code": "some"}
    data = {
        "seq_len": SEQ_LEN,
        "datasets": {name: {"path": path, "weight": 1} for name, path in names.items()},
        "skip": [{"at": 50, "count": 9}],
        "tracks": {"concepts": {}},
        "outputs": {"document_ids": True},
        "exclude": exclude,
        **more,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def run_of(folder, exclude, **more):
    blend = cl.open_blend(config(folder, exclude, **more))
    partition = cl.adapters.Partition(micro_batch_size=2, dp_size=2)
    starts = [cl.adapters.RunStart.of(blend.spec, cl.adapters.BatchSchedule.constant(8), partition, SEQ_LEN)]
    starts.append(dataclasses.replace(starts[0], step=20, consumed=160, batch=[[0, 8]], dp_size=4))
    return Run(blend=blend, history=History(starts))


def test_only_what_is_ahead_may_change(folder, tmp_path):
    saved = run_of(folder, EXCLUDE[:2]).blend.spec
    assert cl.adapters.OrderSpec.from_dict(saved.to_dict()) == saved
    assert saved.to_dict()["exclude"]
    assert run_of(folder, []).blend.spec.to_dict()["exclude"] == {}
    for consumed, changed, allowed in (
        (100, EXCLUDE, True),  # what is new starts at 120
        (121, EXCLUDE, False),
        (120, EXCLUDE, True),
        (30, EXCLUDE[:1], True),
        (31, EXCLUDE[:1], False),
        (61, [{**EXCLUDE[0], "ids": ["web-3", "web-11"]}, EXCLUDE[1]], False),
        (61, [*EXCLUDE[:2], {"at": 61, "ids": ["code-40"]}], True),
    ):
        current = run_of(folder, changed).blend
        if allowed:
            assert current.resume(saved, consumed).spec.exclude == current.spec.exclude
            continue
        with pytest.raises(ResumeError, match=r"exclude\.(web|books)"):
            current.resume(saved, consumed)
    later = {"books": {"path": "books", "weight": 1}, "web": {"path": "web"}}
    phases = {"datasets": later, "phases": [{"at": 100, "weights": {"books": 1, "web": 1}}], "skip": []}
    early = run_of(folder, EXCLUDE[:1], datasets={"books": later["books"]}, skip=[]).blend.spec
    current = run_of(folder, EXCLUDE[:1], **phases).blend  # what is excluded of a dataset that was not there yet
    assert current.resume(early, 90).spec.exclude == current.spec.exclude
    blend = run_of(folder, EXCLUDE).blend
    partition = cl.adapters.Partition(micro_batch_size=2, dp_size=2)
    log = cl.adapters.RunLog(tmp_path)
    start = cl.adapters.RunStart.of(blend.spec, cl.adapters.BatchSchedule.constant(8), partition, SEQ_LEN)
    for one in (start, dataclasses.replace(start, step=25, consumed=200)):
        log.append(one, blend.spec, blend.config.to_dict())
    assert open_run(None, tmp_path).blend.spec == blend.spec


NOTHING = r"""
{at: 0, ids: [nobody]} | found nothing that matches it in books, code, web
{at: 0, dataset: wb, ids: [web-3]} | did you mean web
{at: 0} | expected one of ids, file, tokens
{at: 0, token_file: fifth.txt} | exclude\[0\].dataset: found nothing
{at: 0, ids: [web-3], take: labels} | exclude\[0\].take: found .*labels
{at: -1, ids: [web-3]} | exclude\[0\].at
"""


@pytest.mark.parametrize(("entry", "problem"), cells(NOTHING))
def test_entries_that_mean_nothing(folder, entry, problem):
    entry = yaml.safe_load(entry)
    with pytest.raises(ConfigError, match=problem):
        cl.open_blend(config(folder, [entry]))


def test_ids_that_no_dataset_has_are_said(folder, caplog):
    ids = ["web-3", "nobody", "books-2", "nobody", "no one"]
    some = [{"at": 9, "ids": ids}, {"at": 9, "dataset": "web", "ids": ids[:1]}]
    excluded = cl.open_blend(config(folder, some)).excluded
    assert set(excluded) == {"books", "web"}
    (record,) = caplog.records
    assert "exclude[0]: found no document for 2 ids in books, code, web, such as 'nobody'" in record.getMessage()


RANGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(ranges=RANGES, asked=st.tuples(st.integers(0, 50), st.integers(1, 9)))
def test_where_several_hold_the_earliest_counts(ranges, asked):
    at, start, length = np.array(ranges).T
    found = Mask.of(start, start + length, at)
    first, stop = asked[0], asked[0] + asked[1]
    since = [at for at, start, length in ranges if start < stop and first < start + length]
    assert found.since(np.array([first]), np.array([stop])).tolist() == [min(since, default=NEVER)]
    assert found.since(first, stop) == min(since, default=NEVER)
    assert (found.stop[:-1] <= found.start[1:]).all()


def again(error, file):
    """What the error says: the ranges in a new file, which leaves those that a run has read by; and that one taken."""
    (line,) = re.findall(r"run `conceptloader (.*)` and name that file", error.value.fix or "")
    before = file.read_bytes()
    words = subprocess.check_output(["bash", "-c", f"printf '%s\\0' {line}"], text=True).split("\0")[:-1]
    assert main(words) == 0
    assert file.read_bytes() == before
    Path(f"{file}.new").replace(file)


def test_ranges_are_those_of_the_dataset_as_it_is(tmp_path):
    """A list of another dataset, of earlier tracks or that was cut is refused, with the line that writes it again."""
    ds, file = tmp_path / "ds", tmp_path / "its ranges.txt"

    def write(token, end):
        spans = [(2, end, [1])], [(0, 3, [1])]
        documents = [([token] * 10, {"concepts": some}, name) for some, name in zip(spans, "ab", strict=True)]
        shutil.rmtree(ds, ignore_errors=True)
        written(ds, documents, tracks={"concepts": {}})

    write(5, 6)
    assert main(["subset", str(ds), "--spans", "1 in concepts", "--ranges", str(file)]) == 0
    lines = file.read_text().splitlines()
    assert lines[2:] == ["2 6", "10 13"]
    entry = {"dataset": "a", "token_file": str(file), "at": 0}
    given = {"seq_len": 4, "datasets": {"a": {"path": str(ds)}}, "exclude": [entry]}

    def ranges():
        return cl.open_blend(given).excluded["a"].samples.ranges(0)

    assert ranges() == [(2, 6), (10, 13)]
    for kept in (lines[:-1], [*lines, "15 16"], [*lines[:2], "2 6", "11 13"], [lines[0][:-1] + "_", *lines[1:]]):
        file.write_text("\n".join(kept))
        with raises(ConfigError, str(file), "ranges of") as error:
            ranges()
    again(error, file)
    assert file.read_text().splitlines() == lines
    write(5, 7)
    with raises(ConfigError, str(file), "its tracks") as error:
        ranges()
    again(error, file)
    assert ranges() == [(2, 7), (10, 13)]
    for wrong in ("", "# none", f"\n{file.read_text()}"):
        (tmp_path / "wrong.txt").write_text(wrong)
        with raises(ConfigError, "wrong.txt"):
            cl.open_blend({**given, "exclude": [{**entry, "token_file": str(tmp_path / "wrong.txt")}]})
    with raises(ConfigError, "exclude[0]"):
        cl.open_blend({**given, "exclude": [{"dataset": "a", "ids": [], "at": 0}]})
    some = ["--where", "id = 'a' -- a comment\n or id = 'b'", "--root", str(tmp_path)]
    file.unlink()
    assert main(["subset", str(ds), *some, "--ranges", str(file)]) == 0
    kept = file.read_text()
    file.write_text(kept.replace("0 20", "0 19"))
    with raises(ConfigError, str(file)) as error:
        ranges()
    again(error, file)
    assert file.read_text() == kept
    assert kept.splitlines()[2:] == ["0 20"]
    write(7, 7)
    with raises(ConfigError, str(file), "of the dataset"):
        ranges()
    file.write_text("\n".join(lines[2:]))  # a list of one's own
    assert ranges() == [(2, 6), (10, 13)]
    with raises(ConfigError, str(file), "another file"):
        make_ranges(ds, file, SubsetOptions(where="true"))
    with raises(ConfigError, "by"):
        make_ranges(ds, tmp_path / "new", SubsetOptions(by="id"))


def test_ids_in_a_file_may_hold_separators_of_lines(tmp_path):
    ids = ["a", "b\u2028c", "d\x85e", "f\x0cg"]
    written(tmp_path / "ds", [(range(10), {}, one) for one in ids])
    (tmp_path / "ids.txt").write_text("\ufeff" + "".join(f"{one}\r\n" for one in ids[1:]), encoding="utf-8", newline="")
    entry = {"seq_len": 4, "datasets": {"a": {"path": "ds"}}, "exclude": [{"at": 0, "file": "ids.txt"}]}
    blend = cl.open_blend(cl.load_config(entry, base_dir=tmp_path))
    assert blend.excluded["a"].mask.ranges(0) == [(10, 40)]
