"""datatrove's .ds files, written and read by datatrove itself, through our reader."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from datatrove.utils.dataset import DatatroveFileDataset
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.ingest.adopt import source as adopt_source
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.adopt.in_place import datasets_in_place
from tests.corpora.token_files import write_datatrove as write


def test_a_loss_mask_that_nanotron_ignores_is_ignored_in_place(tmp_path):
    (tmp_path / "tokens").mkdir()
    file = write(tmp_path / "tokens", "00000.ds", [[5, 6, 7]], losses=[[True] * 3], save_loss_metadata=True)
    assert Path(f"{file}.loss").exists()
    found = datasets_in_place(([str(tmp_path / "tokens")], [1]), str(tmp_path / "cache"))
    with cl.open_dataset(found["datasets"]["tokens"]["path"], found["allowed_roots"]) as ds:
        assert ds.tokens(0, 3).tolist() == [5, 6, 7]


@settings(max_examples=25)
@given(st.data())
def test_equals_datatrove(data):
    """Tokens and positions of datatrove's window i, which begins at token i * (seq_len + 1) of its file."""
    size = data.draw(st.sampled_from([2, 4]))
    documents = st.lists(st.lists(st.integers(0, 256**size - 1), min_size=1, max_size=9), min_size=1, max_size=9)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt_source, "PIECE", data.draw(st.integers(1, 9), "piece"))
        folder = Path(directory)
        (folder / "tokens").mkdir()
        files = data.draw(st.lists(documents, min_size=1, max_size=3), "files")
        paths = [write(folder / "tokens", f"{i:05d}.ds", file, size) for i, file in enumerate(files)]
        adopt([folder / "tokens"] if data.draw(st.booleans()) else paths, folder / "ds")
        with cl.open_dataset(folder / "ds") as ds:
            assert ds.num_documents == sum(map(len, files))
            assert ds.num_tokens == sum(len(document) for file in files for document in file)
            seq_len = data.draw(st.integers(1, 8))
            base = 0
            for path, file in zip(paths, files, strict=True):
                theirs = DatatroveFileDataset(str(path), seq_len, size, return_positions=True)
                for i in range(len(theirs)):
                    start, stop = base + i * (seq_len + 1), base + (i + 1) * (seq_len + 1)
                    item = theirs[i]
                    assert ds.tokens(start, stop).tolist() == item["input_ids"].tolist()
                    first = ds.documents_in(start, stop).first
                    at = np.arange(start, stop)
                    begins = np.maximum(first[np.searchsorted(first, at, "right") - 1], start)
                    assert (at - begins).tolist() == item["positions"].tolist()
                base += sum(map(len, file))


@pytest.mark.parametrize("tokenizer", ["gpt2", None])
@pytest.mark.parametrize("size", [2, 4])
def test_an_empty_file_beside_others(tmp_path, size, tokenizer):
    """Its tokens are of the size that its metadata say, if it has some."""
    write(tmp_path / "in", "00000.ds", [[1, 2, 3]], size, tokenizer)
    empty = write(tmp_path / "in", "00001.ds", [[4]], size, tokenizer)
    empty.write_bytes(b"")
    empty.with_name("00001.ds.index").write_bytes(b"")
    metadata = empty.with_name("00001.ds.metadata")
    if tokenizer is None:
        metadata.unlink(missing_ok=True)
    else:
        metadata.write_text(metadata.read_text().replace("1\n1", "0\n0"))
    adopt([tmp_path / "in"], tmp_path / "ds")
    with cl.open_dataset(tmp_path / "ds") as ds:
        assert ds.tokens(0, 3).tolist() == [1, 2, 3]
        assert len(ds.manifest.layouts) == (1 if tokenizer or size == 2 else 2)
