"""Files that are not what they were: replaced before or after their first opening, rebuilt in place, mounted again."""

import os
import pickle

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.storage.sample import sample_places
from tests.raises import raises

SEQ_LEN = 16
TOKENS = 40_000  # of a shard: 80 kB, of which 32 KiB are its sample
SHARD_1 = TOKENS // SEQ_LEN + 10  # a sample of it


def unsampled(size):
    """A byte that is in no sample."""
    places = [range(at, at + count) for at, count in sample_places(size)]
    return next(at for at in range(0, size, 2) if not any(at in place for place in places))


def write(path, seed=0, other=False):
    """Datasets of any seed have files of equal sizes. other: one token of shard 1 is another, in no sample."""
    tracks = {"concepts": cl.writing.TrackOptions(encoding="spans")}
    build = cl.writing.create_writer(path, cl.writing.BuildOptions(token_type="u2", tracks=tracks), plan=[0, 1])
    for shard in range(2):
        rng = np.random.default_rng([seed, shard])
        tokens = rng.integers(0, 998, TOKENS)
        tokens[unsampled(2 * TOKENS) // 2] += other and shard == 1
        with build.shard(shard) as writer:
            for number in range(4):
                spans = [(k, k + 5, [int(rng.integers(9))]) for k in range(0, 990, 10)]
                part = tokens[TOKENS // 4 * number : TOKENS // 4 * (number + 1)]
                writer.add_document(part, spans={"concepts": spans}, id=f"{shard} {number}")
    cl.writing.finalize(path)
    return path


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "ds")


def make(data, **options):
    config = {
        "seq_len": SEQ_LEN,
        "order": "sequential",
        "datasets": {"a": {"path": str(data)}},
        "tracks": {"concepts": {}},
        "outputs": {"document_ids": True},
        "loader": {"prefetch_batches": 0, **options},
    }
    return cl.make_dataloader(config, micro_batch_size=100)


def read(batches, steps):
    iterator = iter(batches)
    return [next(iterator)["input_ids"].flatten().tolist() for _ in range(steps)]


def read_samples(loader, first):
    """Eight samples that the loader would reach later."""
    return np.asarray(loader._reader.read(np.arange(first, first + 8, dtype=np.uint64))["input_ids"]).tolist()


def replace(file, data):
    """By a file of the same time, as a copy that keeps times does."""
    times = file.stat()
    new = file.with_suffix(".new")
    new.write_bytes(data)
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(new, file)
    assert file.stat().st_ino != times.st_ino


@pytest.mark.parametrize("kind", ["stream.bin", "documents.bin", "concepts.spans", "concepts.data"])
def test_a_file_replaced_before_its_first_opening_is_never_read(data, tmp_path, kind):
    wanted = read(make(data), 4)
    loader = make(data)
    assert read(loader, 2) == wanted[:2]
    file = data / f"00001.{kind}"
    other = bytearray(file.read_bytes())
    other[len(other) // 2 :] = bytes(len(other) - len(other) // 2)
    replace(file, bytes(other))
    with pytest.raises(
        FormatError, match=rf"{file}: found sample checksum \w+, expected \w+ as the manifest says; .*or"
    ):
        read_samples(loader, SHARD_1)
    (problem,) = cl.verify(data)
    assert problem.file == str(file)


def test_the_check_can_be_switched_off(data):
    file = data / "00000.stream.bin"
    replace(file, bytes(file.stat().st_size))
    loader = make(data, verify_files=False)
    assert read(loader, 1) == [[0] * 1600]


def rebuild(data, changed=True):
    """The dataset in place, with one other token in shard 1 where no sample looks."""
    new = data.parent / "new"
    write(new, other=changed)
    for file in sorted(new.iterdir(), key=lambda file: file.name == "manifest.json"):
        os.replace(file, data / file.name)


def test_a_dataset_rebuilt_in_place_is_never_mixed_with_what_it_was(data):
    loader = make(data)
    read(loader, 2)
    sizes = {file.name: file.stat().st_size for file in data.iterdir()}
    old = cl.open_dataset(data)
    tokens = old.tokens(0, 2 * TOKENS)
    rebuild(data)
    new = cl.open_dataset(data)
    assert {file.name: file.stat().st_size for file in data.iterdir()} == sizes
    assert (new.tokens(0, 2 * TOKENS) != tokens).sum() == 1
    assert new.stream_fingerprint != old.stream_fingerprint
    with raises(FormatError, "manifest.json", "a manifest of other content"):
        read_samples(loader, SHARD_1)


def write_over(data, *names):
    """Files by those of another build, as `cp` does it: open descriptors show the new content."""
    write(data.parent / "other", other=True)
    for name in names:
        (data / name).write_bytes((data.parent / "other" / name).read_bytes())


def close_all(loader):
    """As for the sake of other files."""
    files = loader._reader._files
    for row in range(len(files.files)):
        files.close(row)


@pytest.mark.parametrize("name", ["stream.bin", "documents.bin", "concepts.data", "concepts.spans"])
def test_an_open_file_that_is_written_over(data, name):
    """It is noticed when the file is opened again."""
    loader = make(data)
    read_samples(loader, SHARD_1)
    write_over(data, f"00001.{name}")
    close_all(loader)
    for _ in range(2):
        with pytest.raises(FormatError, match=rf"{data}/00001.{name}: found a modification time"):
            read_samples(loader, SHARD_1)


def test_a_file_of_other_content_is_refused_when_it_is_opened_again(data):
    """Of equal size and time. One of equal content is read on, as of a file system that is mounted again."""
    loader, file = make(data), data / "00001.stream.bin"
    wanted = read_samples(loader, SHARD_1)
    for content, same in ((file.read_bytes(), True), (bytes(2 * TOKENS), False)):
        replace(file, content)
        assert read_samples(loader, SHARD_1) == wanted, "the old one is still open"
        close_all(loader)
        if same:
            assert read_samples(loader, SHARD_1) == wanted
    with raises(FormatError, file, "sample checksum"):
        read_samples(loader, SHARD_1)


def test_the_same_dataset_put_in_place_again_is_read_on(data):
    wanted = read(make(data), 30)
    loader = make(data)
    rebuild(data, changed=False)
    assert read(loader, 30) == wanted


def test_a_dataset_rebuilt_before_it_is_unpickled_is_refused(data):
    ds = cl.open_dataset(data)
    copy = pickle.dumps(ds)
    assert pickle.loads(copy).stream_fingerprint == ds.stream_fingerprint
    rebuild(data)
    with raises(FormatError, found="manifest of other content"):
        pickle.loads(copy)


def derive(how, data, out):
    """A dataset that refers to the files of `data`, and of another one after those if it is joined."""
    if how == "joined":
        cl.concat([data, write(out.parent / "other", seed=5)], out)
    else:
        rows = out.parent / "rows.jsonl"
        rows.write_text('{"id": "0 0", "start": 0, "end": 5, "concepts": [1]}\n')
        cl.annotate(data, [rows], out, track="more", span_unit="token")
    return out


@pytest.mark.parametrize("how", ["joined", "annotated"])
def test_a_source_rebuilt_in_place_while_in_use(data, tmp_path, how):
    """Nor can what was made of it be opened after that; nor is it needed, beyond its files."""
    derived = derive(how, data, tmp_path / "derived")
    wanted = cl.open_dataset(derived).tokens(0, 2 * TOKENS).tolist()
    (data / "manifest.json").rename(tmp_path / "aside")
    assert cl.open_dataset(derived).tokens(0, 2 * TOKENS).tolist() == wanted, "of a source that nobody describes"
    (tmp_path / "aside").rename(data / "manifest.json")
    loader = make(derived)
    read(loader, 2)
    rebuild(data)
    for use in (lambda: read_samples(loader, SHARD_1), lambda: cl.open_dataset(derived), lambda: make(derived)):
        with raises(FormatError, data / "manifest.json", "of 00001.stream.bin"):
            use()
    assert any("of 00001.stream.bin" in problem.message for problem in cl.verify(derived))
