"""datatrove's .ds files, written and read by datatrove itself, through our reader."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from datatrove.utils.dataset import DatatroveFileDataset
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.adopt import source as adopt_source
from conceptloader.ingest.adopt.adopt import adopt
from tests.corpora.token_files import write_datatrove as write
from tests.corpora.tokenizers import definition
from tests.raises import raises


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


def test_what_is_noted_beside_the_tokens(tmp_path):
    path = write(tmp_path, "x.ds", [[1, 2], [3]], save_loss_metadata=True)
    with raises(InputError, "x.ds.loss", "a loss mask", fix="--ignore-loss-mask"):
        adopt([path], tmp_path / "a")
    assert adopt([path], tmp_path / "a", ignore_loss_mask=True).extra == {"adopted_tokenizers": ["gpt2"]}
    assert adopt([write(tmp_path, "y.ds", [[1]], tokenizer=None)], tmp_path / "b").extra == {}
    path = write(tmp_path, "z.ds", [[1]], save_final_metadata=False)
    assert adopt([path], tmp_path / "c").layouts[0].token_type == "u2"
    (tmp_path / "z.ds.metadata").write_text("gpt2\n1\n1 T")
    assert adopt([path], tmp_path / "d").extra == {"adopted_tokenizers": ["gpt2"]}


def test_bad_files(tmp_path):
    def ends(*values):
        return np.array(values, "<u8").tobytes()

    cases = [  # a file, its bytes; where the problem is, what is found
        (".index", None, ".index", "no readable file"),
        (".index", bytes(15), ".index", "15 bytes"),
        ("", bytes(9), ".ds", "9 bytes"),
        (".index", ends(2, 6), ".ds", "10 bytes"),
        (".index", ends(3, 2, 5), ".index", "document 1 to end at token 2"),
        (".metadata", b"gpt2|4\n5", ".metadata", "tokens of 4 bytes"),
        (".metadata", b"gpt2|x\n", ".metadata", "the first line 'gpt2|x'"),
    ]
    for number, (file, data, where, found) in enumerate(cases):
        path = write(tmp_path / str(number), "x.ds", [[1, 2], [3, 4, 5]])
        Path(f"{path}{file}").write_bytes(data) if data is not None else Path(f"{path}{file}").unlink()
        with raises(InputError, where, found):
            adopt([path], tmp_path / "ds")
    path = write(tmp_path, "x.ds", [[1, 2]])
    with raises(ConfigError, "dtype", "'uint16' for files that say it themselves"):
        adopt([path], tmp_path / "ds", dtype="uint16")
    assert not (tmp_path / "ds").exists()


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


def test_the_same_tokenizer_under_the_name_that_datatrove_noted(tmp_path):
    """--tokenizer and the note beside the tokens name one tokenizer, by file, folder or on the hub."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(definition("word piece"))
    path = write(tmp_path, "x.ds", [[1, 2], [3]])
    for k, noted in enumerate(["gpt2", "openai-community/gpt2", str(folder / "tokenizer.json"), str(folder)]):
        (tmp_path / "x.ds.metadata").write_text(f"{noted}|2\n3\n3 T")
        chosen = folder if k % 2 else folder / "tokenizer.json"
        assert main(["adopt", str(path), "--out", str(tmp_path / f"ds{k}"), "--tokenizer", str(chosen)]) == 0
        assert cl.open_dataset(tmp_path / f"ds{k}").tokenizer.name.startswith("tokenizers-")
    (tmp_path / "x.ds.metadata").write_text("llama|2\n3\n3 T")
    assert main(["adopt", str(path), "--out", str(tmp_path / "no"), "--tokenizer", str(folder)]) == 1
