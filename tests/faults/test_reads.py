"""Reads that fail: what may pass is tried again with the file opened anew, the rest is an error that says where."""

import errno
import logging
import os

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ReadError
from conceptloader.storage import reads as io
from tests.corpora.two_shards import write_corpus
from tests.raises import raises

PASSING = [errno.EINTR, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT]


def everything(ds):
    """All that a dataset holds, in a form that can be compared."""
    sample = ds.read(0, ds.num_tokens, sorted(ds.tracks), documents=True)
    spans = sample["concepts"]
    return [sample["tokens"].tolist(), sample["documents"].ids.tolist(), spans.start.tolist(), spans.values.tolist()]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What is read without faults."""
    return everything(cl.open_dataset(write_corpus(tmp_path_factory.mktemp("undisturbed") / "ds")))


@pytest.mark.parametrize(("code", "times"), [*zip(PASSING, (1, 2, 3, 4, 5), strict=True), (errno.EIO, 7)])
def test_a_fault_that_passes_costs_time_and_nothing_else(corpus, wanted, disk, code, times, caplog):
    ds = cl.open_dataset(corpus)
    disk.fail(code, times, "stream.bin")
    with caplog.at_level(logging.WARNING):
        assert everything(ds) == wanted
    assert disk.waited == list(io.BACKOFF_S[:times])
    (said,) = caplog.records
    assert "00000.stream.bin" in said.getMessage()
    assert "other" not in said.getMessage()
    io.tell_all()
    assert [f": {times - 1} other" in text for text in caplog.messages[1:]] == [True] * (times > 1)


def test_a_fault_that_stays_is_an_error_naming_file_and_offset(corpus, disk):
    ds = cl.open_dataset(corpus)
    ds.tokens(ds.shard_starts[1], ds.shard_starts[1] + 1)  # the file is open, and has been looked at
    disk.fail(errno.EIO, None, "00001.stream.bin")
    with raises(ReadError, corpus / "00001.stream.bin", "at offset 10:", fix="failed 8 times") as raised:
        ds.tokens(ds.shard_starts[1] + 5, ds.num_tokens)  # 5 tokens of 2 bytes
    assert raised.value.errno == errno.EIO
    assert disk.waited == list(io.BACKOFF_S)


def test_what_cannot_pass_is_not_retried(corpus, disk):
    ds = cl.open_dataset(corpus)
    for code in (errno.EACCES, errno.EISDIR, errno.EBADF):
        disk.read_faults.clear()
        disk.fail(code, None, "stream.bin")
        with pytest.raises(ReadError):
            ds.tokens(0, 10)
    assert disk.waited == []


def test_out_of_descriptors_the_idle_ones_make_room(corpus, disk):
    ds, idle = (cl.open_dataset(corpus) for _ in range(2))
    wanted = everything(ds)
    assert everything(idle) == wanted
    ds.files.source.table.close(str(corpus / "00000.concepts.data"))
    disk.open_faults = [OSError(errno.EMFILE, "Too many open files")]
    assert everything(ds) == wanted
    assert not idle.files.source.table.descriptors
    ds.files.source.table.close(str(corpus / "00000.concepts.data"))
    disk.open_faults = [OSError(errno.EMFILE, "Too many open files")] * 2
    with raises(ReadError, found="Too many open files", fix="raise the limit of open files"):  # and no advice to look
        everything(ds)


def test_random_faults_never_change_what_is_read(corpus, wanted, disk):
    rng = np.random.default_rng(0)

    def fault(descriptor, size, offset):
        dice = rng.random()
        if dice < 0.25:
            code = int(rng.choice([*PASSING, errno.EACCES], p=[0.19] * 5 + [0.05]))
            raise OSError(code, os.strerror(code))
        return os.pread(descriptor, int(rng.integers(1, size + 1)), offset) if dice < 0.5 and size else None

    disk.read_faults.append(fault)
    correct, errors = 0, []
    for _ in range(200):
        try:
            assert everything(cl.open_dataset(corpus)) == wanted
            correct += 1
        except ConceptloaderError as error:
            errors.append(str(error))
    assert correct > 10
    assert len(errors) > 10
    assert all(str(corpus) in error for error in errors)
