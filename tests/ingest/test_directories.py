"""Folders: all files of one kind below one, or a refusal that says which line to type; and faulty files."""

import base64
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.files import input_files
from conceptloader.ingest.records.inputs import find_sources, read_rows
from conceptloader.ingest.records.tokenizer import load_tokenizer
from tests.raises import raises


def refuse(problem):
    raise InputError.saying("", problem)


def texts(folder):
    return [row["text"] for source in find_sources([folder]) for _, row in read_rows(source, None, refuse)]


def lines(path, *found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found or (path.stem,)))


def tree(folder, *names):
    """Files with a row each: their name. Others than .jsonl are empty."""
    for name in names:
        lines(folder / name, name)
    return folder


FOLDERS = """
a.jsonl b/c.jsonl b/d/e.jsonl =>
part-00000.jsonl part-00001.jsonl _SUCCESS .part-00000.jsonl.crc =>
train-00000-of-00002.jsonl train-00001-of-00002.jsonl README.md info.json =>
x-00001-of-00002.jsonl x-00002-of-00002.jsonl y-00000-of-00001.jsonl =>
validation/a.jsonl validation/b.jsonl =>
a.jsonl b.csv => files of another kind
a.jsonl a.jsonl.gz => several kinds: .jsonl, .jsonl.gz
train.jsonl dev.jsonl => several splits: dev, train
train/a.jsonl test/a.jsonl => several splits: test, train
wiki.train.jsonl wiki.jsonl => several splits: none, train
a.jsonl _old/b.jsonl => _old/b.jsonl, which is hidden
a.jsonl .b.jsonl => .b.jsonl, which is hidden
lang=en/a.jsonl lang=de/a.jsonl => the value of a column
a.jsonl state.json => state.json: not all
train/a.jsonl dataset_dict.json => dataset_dict.json: not all
a.jsonl dataset_info.json => dataset_info.json: not all
part-0.jsonl _temporary/0/x => _temporary/0/x: not all
a.jsonl b.jsonl.incomplete => b.jsonl.incomplete: not all
a.jsonl _delta_log/0.json => the Delta table
a.jsonl metadata/v1.metadata.json => metadata/v1.metadata.json: not all
a.jsonl .hoodie/hoodie.properties => .hoodie/hoodie.properties: not all
snapshots/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/x.jsonl snapshots/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb/x.jsonl => not all
a-00000-of-00003.jsonl a-00002-of-00003.jsonl => the numbers 0, 2 of 3
a-00000-of-00001-0a.jsonl a-00000-of-00001-0b.jsonl => the numbers 0, 0 of 1
a-00000-of-00002.jsonl a-00001-of-00002.jsonl a-00000-of-00003.jsonl => of 2 and of 3
x/a.00000-of-00002.jsonl y/a.00001-of-00002.jsonl => the numbers 0 of 2
"""  # noqa: E501 - files, and the words in which the folder of them is refused, if it is


@pytest.mark.parametrize("folder", FOLDERS.strip().splitlines())
def test_a_folder_is_all_files_of_one_kind_or_refused(folder, tmp_path, caplog):
    files, _, found = folder.partition(" =>")
    names = files.split()
    tree(tmp_path, *names)
    records = [name for name in names if name.endswith(".jsonl")]
    if found:
        with raises(ConfigError, tmp_path, found.strip()) as caught:
            input_files([tmp_path])
        assert caught.value.fix
        assert len(input_files([tmp_path / name for name in records])) == len(records)  # one by one, they are meant
        return
    assert texts(tmp_path) == sorted(records)
    assert (f"skipped {len(names) - len(records)} files of other kinds" in caplog.text) == (len(names) > len(records))


def test_a_part_of_a_table_and_a_repository_with_configs_are_refused(tmp_path):
    tree(tmp_path / "table", "day/a.jsonl", "_delta_log/0.json")
    with raises(ConfigError, "day", "the Delta table"):
        input_files([tmp_path / "table" / "day"])
    tree(tmp_path / "hub", "en/a.jsonl")
    (tmp_path / "hub" / "README.md").write_text("---\nconfigs:\n- config_name: en\n---\n")
    with raises(ConfigError, "hub", "README.md with `configs`", fix="refs/convert/parquet"):
        input_files([tmp_path / "hub"])
    assert texts(tmp_path / "hub" / "en") == ["en/a.jsonl"]


def test_corrupt_pages_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a" * 20, "b" * 20]})
    pq.write_table(
        table, path, compression="none", use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    data = path.read_bytes()
    path.write_bytes(data.replace(b"bbb", b"bcb", 1))
    assert path.read_bytes() != data
    with pytest.raises(InputError, match=r"a.parquet: row group 0, from row 0 on: found what pyarrow.* CRC"):
        cl.build(path, tmp_path / "out", tokenizer="bytes")


class _Keys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


@pytest.mark.parametrize("plain", [False, True])
def test_encrypted_columns_of_parquet(tmp_path, plain):
    """pyarrow would end the process, even where nobody wants that column."""
    plan = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=plain)
    keys = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), plan)
    table = pa.table({"text": ["one"], "secret": ["two"]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=keys) as file:
        file.write_table(table)
    with raises(InputError, "a.parquet", "crypt"):
        find_sources([tmp_path / "a.parquet"])


def test_of_a_repository_the_files_of_a_path_are_fetched(tmp_path, monkeypatch):
    """What is asked for is there afterwards, and is a folder or file as any other."""
    names = "a/train/0.jsonl", "a/test/0.jsonl", "c/1.jsonl", "c/[1].jsonl", "b.tar"
    fetched = []

    def snapshot_download(name, *, allow_patterns, **_):
        from huggingface_hub.utils import filter_repo_objects

        fetched[:] = filter_repo_objects(names, allow_patterns=allow_patterns)
        tree(tmp_path, *fetched)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert texts("hub:some/one/c@main") == ["c/1.jsonl", "c/[1].jsonl"] == fetched
    assert texts("hub:some/one/c/[1].jsonl") == ["c/[1].jsonl"] == fetched
    assert texts("hub:some/one/a/train@refs/convert/parquet") == ["a/train/0.jsonl"]
    with raises(ConfigError, "input", "several splits: none, test, train"):
        find_sources(["hub:some/one"])
    assert "b.tar" not in fetched
    with raises(ConfigError, "hub:some/one:dev", "split 'dev'", fix="hub:some/one/CONFIG/dev@refs/convert/parquet"):
        find_sources(["hub:some/one:dev"])
    with raises(ConfigError, "b.tar", fix="unpack"):
        find_sources(["hub:some/one/b.tar"])
    with raises(ConfigError, "hub:some/one:x", "split 'x' of a model"):
        load_tokenizer("hub:some/one:x")
