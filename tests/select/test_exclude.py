"""Documents taken out of a run: what may change at a resume, what is said, what is refused. That samples and answers
are without them is what tests/oracle and trace/test_answers.py compare."""

import dataclasses
import subprocess

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.config.mask import NEVER, Mask
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.runlog import History
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, open_run
from conceptloader.trace.subset import SubsetOptions, _quoted, make_ranges, make_subsets
from tests.raises import cells

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


@pytest.mark.parametrize("text", ["id = 'a' -- a comment\n or id = 'b'", r"id like '\n%'", "true"])
def test_options_of_a_list_are_quoted_for_a_shell_on_one_line(text):
    assert "\n" not in _quoted(text)
    assert subprocess.check_output(["bash", "-c", f"printf %s {_quoted(text)}"], text=True) == text
