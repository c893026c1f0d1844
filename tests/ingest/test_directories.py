"""Directories that other libraries wrote: the rows that these would read, of one split, or an error."""

import base64
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConceptloaderError, ConfigError, InputError
from conceptloader.ingest.chunks.arguments import parquet_files
from conceptloader.ingest.layouts.find import input_files
from conceptloader.ingest.layouts.names import split_names
from conceptloader.ingest.records.inputs import find_sources, read_rows
from conceptloader.ingest.records.tokenizer import load_tokenizer
from tests.corpora.records import write_rows
from tests.raises import raises


def refuse(problem: str) -> None:
    raise InputError.saying("", problem)


def texts(folder: Path | str, split: str | None = None) -> list[str]:
    sources = find_sources([folder], split)
    return [row["text"] for source in sources for _, row in read_rows(source, None, refuse)]


def lines(path: Path, *found: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found or (path.stem,)))


def tree(folder: Path, *names: str) -> Path:
    """Files with a row each: their name. Others than .jsonl are empty."""
    for name in names:
        lines(folder / name, name)
    return folder


def arrow(path: Path, *found: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"text": [*found]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=1)
    return path


def saved(folder: Path, *found: str, **state: Any) -> Path:
    """As `Dataset.save_to_disk` leaves it, a file for each text."""
    files = [f"data-{i:05d}-of-{len(found):05d}.arrow" for i in range(len(found))]
    for name, text in zip(files, found, strict=True):
        arrow(folder / name, text)
    given = {"_data_files": [{"filename": name} for name in files], "_split": None, **state}
    (folder / "state.json").write_text(json.dumps(given))
    (folder / "dataset_info.json").write_text("{}")
    return folder


# Names of files -> their splits, "" for none.
NAMES: list[dict[str, str]] = [
    {"train.jsonl": "train", "test.jsonl": "test", "a/dev.jsonl": "dev"},
    {"train.parquet/part-0.parquet": "train", "test.parquet/part-0.parquet": "test"},
    {"train/1.jsonl": "train", "validation/test-notes.jsonl": "validation"},
    {"training_notes.jsonl": "", "test_plans.jsonl": "", "essay.jsonl": ""},
    {"testimony.jsonl": "", "evaluations.jsonl": "", "development.jsonl": "", "trainspotting.jsonl": ""},
    {"train_en.jsonl": "train", "valid_en.jsonl": "valid", "train_fr.jsonl": "train"},
    {"wiki.train.raw.jsonl": "train", "wiki.test.raw.jsonl": "test"},
    {"c4-train.00000-of-00001.json.gz": "train", "c4-validation.00000-of-00001.json.gz": "validation"},
    {"corpus.jsonl": "", "corpus-test.parquet": "test"},
    {"Train_01.csv": "train", "TEST.csv": "test", "split=eval/x.csv": "eval"},
    {"data/train_sft-00000-of-00001.parquet": "train_sft", "data/test_sft-00000-of-00001-0a1b.parquet": "test_sft"},
    {"data/en-00000-of-00001.parquet": "en", "data/de-00000-of-00001.parquet": "de", "more.parquet": ""},
    {"train_sft.jsonl": "train", "train_gen.jsonl": "train", "test_sft.jsonl": "test", "test_gen.jsonl": "test"},
    {"wiki_test_set/a.jsonl": "test", "en-validation/1.jsonl": "validation", "test_plans/a.jsonl": "", "b.jsonl": ""},
    {"my_train_data/a.jsonl": "train", "train_test/a.jsonl": "", "wiki_test.jsonl": ""},
    {"train_test_split.jsonl": "", "train-eval.jsonl": "", "data.jsonl": "", "000.jsonl": ""},
]


@pytest.mark.parametrize("wanted", NAMES, ids=lambda names: next(iter(names)))
def test_which_split_a_name_means(wanted: dict[str, str]) -> None:
    assert split_names([*wanted]) == wanted


def test_splits_are_never_merged_unless_all_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tree(tmp_path, "train-0.jsonl", "train-1.jsonl", "dev.jsonl", "eval.jsonl")
    with raises(ConfigError, folder, "dev (1 file), eval (1 file), train (2 files)", fix="--split train"):
        find_sources([folder])
    assert texts(folder, "train") == ["train-0.jsonl", "train-1.jsonl"]
    assert texts(folder, "validation") == texts(folder, "dev") == ["dev.jsonl"]
    assert len(texts(folder, "all")) == 4
    with raises(ConfigError, "split", "'en'", "dev (1 file)"):
        find_sources([folder], "en")
    lines(folder / "more" / "x.jsonl")
    (folder / "dev.jsonl").unlink()
    with raises(ConfigError, found="of no split (1 file)"):
        find_sources([folder])
    (folder / "eval.jsonl").unlink()
    assert len(texts(folder)) == 3  # nothing that is there to be tested with
    assert "read files of no split, such as more/x.jsonl, with split 'train'" in caplog.text
    assert texts(folder / "more", "train") == ["x"]  # as `datasets` calls what is of no split
    with raises(ConfigError, "split", "'train'"):
        find_sources([folder / "more" / "x.jsonl"], "train")


def test_splits_that_are_named_one_by_one_are_all_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a shell expands data/*."""
    names = tree(tmp_path, "train.jsonl", "test/a.jsonl").iterdir()
    assert len(find_sources([*names])) == 2
    assert "inputs: found several splits (test, train), each named; all of them are read" in caplog.text


def test_files_of_chunks_are_found_as_others(tmp_path: Path) -> None:
    for name in ("a.parquet", ".b.parquet", "_temporary.parquet", "below/c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / name)
    assert parquet_files([str(tmp_path)]) == (f"{tmp_path}/a.parquet", f"{tmp_path}/below/c.parquet")
    (tmp_path / "below").rename(tmp_path / "test")
    (tmp_path / "a.parquet").rename(tmp_path / "train.parquet")
    with raises(ConfigError, found="test (1 file), train (1 file)"):
        parquet_files([str(tmp_path)])
    train = f"{tmp_path}/train.parquet"
    assert parquet_files([str(tmp_path)], "train") == (train,)
    assert parquet_files([str(tmp_path), train], "train") == (train, train)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "more.jsonl").write_text('{"text": "a"}\n')
    with raises(ConfigError, "more.jsonl", "no parquet file"):  # which a directory's split has, too
        parquet_files([str(tmp_path)], "train")
    (tmp_path / "hive" / "lang=en").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "hive" / "lang=en" / "a.parquet")
    with raises(ConfigError, "a.parquet", "column 'lang'"):
        parquet_files([str(tmp_path / "hive")])


def test_every_entry_takes_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tree(tmp_path / "in", "train.jsonl", "test.jsonl"), str(tmp_path / "out")
    common = ["--tokenizer", "bytes", "--workers", "1", "--quiet"]
    assert main(["build", str(folder), "--out", out, *common]) == 2
    assert "test (1 file), train (1 file)" in capsys.readouterr().err
    assert main(["init", str(folder), "--out", f"{out}.yaml", "--tokenizer", "bytes"]) == 2
    assert main(["init", str(folder), "--out", f"{out}.yaml", "--tokenizer", "bytes", "--split", "test"]) == 0
    assert main(["build", "--recipe", f"{out}.yaml", "--out", out, *common[2:]]) == 0
    assert cl.open_dataset(out).num_documents == 1
    rows = tmp_path / "rows"
    rows.mkdir()
    for name, number in (("train", 0), ("test", 9)):
        (rows / f"{name}.jsonl").write_text(json.dumps({"document": number, "concepts": [1]}) + "\n")
    annotate = ["annotate", out, str(rows), "--track", "t", "--out", f"{out}-t"]
    assert main(annotate) == 2
    assert main([*annotate, "--split", "train"]) == 0
    summary = cl.build(folder, f"{out}-all", tokenizer="bytes", split="all")
    assert summary.documents == 2


def test_a_saved_dataset_is_what_its_state_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = saved(tmp_path / "saved", "a", "b", _split="train")
    for name in ("cache-0123456789abcdef.arrow", "data-00002-of-00003.arrow"):
        arrow(folder / name, "OLD")
    assert texts(folder) == texts(folder, "train") == ["a", "b"]
    assert "skipped 2 files that are no data of this directory" in caplog.text
    assert texts(tmp_path) == ["a", "b"]  # also from above
    (folder / "data-00001-of-00002.arrow").unlink()
    with raises(InputError, "data-00001-of-00002.arrow", "no such file"):
        find_sources([folder])
    saved(folder, "a", _indices_files=[{"filename": "indices.arrow"}])
    with raises(InputError, found="with indices", fix="flatten_indices"):
        find_sources([tmp_path])
    (folder / "state.json").write_text("{")
    with raises(InputError, "state.json", "broken JSON"):
        find_sources([tmp_path])


def test_a_saved_dict_has_splits(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "heldout"]}')
    for split in ("train", "heldout", "unlisted"):
        saved(tmp_path / split, split)
    with raises(ConfigError, found="train (1 file), heldout (1 file)"):
        find_sources([tmp_path])
    assert texts(tmp_path, "heldout") == ["heldout"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["heldout"]}')
    assert texts(tmp_path) == ["heldout"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["heldout", "gone"]}')
    with raises(InputError, "gone/state.json", "no such file"):
        find_sources([tmp_path])


def test_what_a_builder_prepared(tmp_path: Path) -> None:
    folder = tmp_path / "name" / "default" / "0.0.0" / "abc"
    splits = {"train": {"name": "train", "shard_lengths": [1, 1]}, "test": {"name": "test"}}
    arrow(folder / "name-train-00000-of-00002.arrow", "a")
    arrow(folder / "name-test.arrow", "t")
    arrow(folder / "cache-0123456789abcdef.arrow", "OLD")
    (folder / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    with raises(InputError, "name-train-00001-of-00002.arrow", "no such file"):
        find_sources([tmp_path])
    arrow(folder / "name-train-00001-of-00002.arrow", "b")
    assert texts(tmp_path, "train") == ["a", "b"]
    with raises(ConfigError, found="test (1 file)"):
        find_sources([tmp_path])


HEAD = "configs:\n- config_name: default\n  data_files:"
# configs of a README.md, the split that is asked for, the files that are read
CONFIGS = [
    (f"{HEAD} a/*.jsonl", None, ["a/0", "a/1"]),
    (
        f"{HEAD}\n  - split: train\n    path: [a/0.jsonl, b/**]\n  - split: dev\n    path: c/?.jsonl",
        "train",
        "a/0 b/x/y",
    ),
    (f"{HEAD}\n  - split: train\n    path: b/**\n  - split: dev\n    path: c/[!2].jsonl", "validation", ["c/1"]),
    (f"{HEAD}\n  - '**/*.jsonl'", None, ["_u/z", "a/0", "a/1", "b/x/y", "c/1"]),
    ("configs:\n- {config_name: one, data_files: a/0.jsonl}\n- {config_name: two, data_dir: c}", "two", ["c/1"]),
    ("configs:\n- {config_name: one, data_files: a/0.jsonl}\n- {config_name: two, data_dir: c}", "one/train", ["a/0"]),
    (
        "configs:\n- {config_name: x, default: true, data_files: a/*}\n- {config_name: y, data_files: c/*}",
        None,
        "a/0 a/1",
    ),
    (
        "configs:\n- {config_name: x, default: true, data_files: a/*}\n- {config_name: y, data_files: c/*}",
        "y/train",
        "c/1",
    ),
]


def repository(folder: Path, head: str) -> Path:
    tree(folder, "a/0.jsonl", "a/1.jsonl", "b/x/y.jsonl", "c/1.jsonl", ".h/0.jsonl", "__p/0.jsonl", "_u/z.jsonl")
    (folder / "README.md").write_text(f"---\nlicense: mit\n{head}\n---\n# A dataset\n")
    return folder


@pytest.mark.parametrize(("head", "split", "wanted"), CONFIGS)
def test_configs_of_a_repository(tmp_path: Path, head: str, split: str | None, wanted: list[str] | str) -> None:
    names = wanted.split() if isinstance(wanted, str) else wanted
    assert texts(repository(tmp_path, head), split) == [f"{name}.jsonl" for name in names]


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (CONFIGS[1][0], "train (2 files), dev (1 file)"),
        (CONFIGS[4][0], "one/train (1 file), two (1 file)"),
        (f"{HEAD} gone/*", "files 'gone/*', of which none is there"),
        (f"{HEAD} https://example.org/a.jsonl", "of which none is there"),
        (f"{HEAD} 7", "configs with 7"),
        ("configs: [a]", "configs with ['a']"),
        (f"{HEAD} a/*\n  filters: [[n, '>', 1]]", "the option 'filters' of config 'default'"),
        (
            "configs:\n- {config_name: a, data_files: a/*, sep: ;}\n- {config_name: c, data_dir: c}",
            "'sep' of config 'a'",
        ),
        ("configs:\n - [", "not valid YAML"),
        (f"{HEAD} README.md", "an unknown file name"),
    ],
)
def test_configs_that_are_ambiguous_or_wrong(tmp_path: Path, head: str, problem: str) -> None:
    with raises(ConceptloaderError, found=problem):
        find_sources([repository(tmp_path, head)])


@pytest.mark.parametrize("manifest", ["dataset_info.json", "README.md"])
@pytest.mark.parametrize("listed", [True, False])
def test_as_many_rows_as_a_manifest_says(tmp_path: Path, manifest: str, listed: bool) -> None:
    arrow(tmp_path / "csv-train.arrow", "a", "b")
    arrow(tmp_path / "csv-test.arrow", "c")
    for rows in (2, 3):
        if manifest == "README.md":
            info = [{"config_name": "default", "splits": [{"name": "train", "num_examples": rows}]}]
            more = json.dumps(info if listed else info[0])
            head = "configs:\n- {config_name: default, data_files: csv-train.arrow}\ndataset_info: " + more
            (tmp_path / manifest).write_text(f"---\n{head}\n---\n")
        else:
            splits = {"train": {"num_examples": rows}, "test": {"num_examples": 9 if listed else None}}
            (tmp_path / manifest).write_text(json.dumps({"splits": splits}))
        if rows == 2:
            assert texts(tmp_path, "train") == ["a", "b"]
        else:
            with raises(InputError, "train", "2 rows", f"3, as {tmp_path / manifest} says"):
                find_sources([tmp_path], "train")


def test_why_nothing_is_read(tmp_path: Path) -> None:
    for name, files in [("a", ["part-00000", "x/_y.jsonl"]), ("c", []), ("b", [])]:
        (tmp_path / name).mkdir()
        tree(tmp_path / name, *files)
    saved(tmp_path / "b")
    whys = {"a": ["part-00000 has another ending", "_y.jsonl is hidden"], "c": ["no file is there"]}
    for name, some in {**whys, "b": ["dataset_info.json lists no files"]}.items():
        for why in some:
            with raises(InputError, name, why):
                find_sources([tmp_path / name])


def test_an_unfinished_file_beside_numbered_ones_is_named(tmp_path: Path) -> None:
    tree(tmp_path, "a-00000-of-00002.jsonl.incomplete", "a-00001-of-00002.jsonl")
    with raises(InputError, found="1 of 2 files, without 0; a-00000-of-00002.jsonl.incomplete is not complete"):
        find_sources([tmp_path])


def test_options_of_a_config_that_is_not_read(tmp_path: Path) -> None:
    """Another one may have some, but is not to be had."""
    head = "configs:\n- {config_name: default, data_files: c/*}\n- {config_name: x, data_files: a/*, sep: ;}"
    assert texts(repository(tmp_path, head)) == ["c/1.jsonl"]
    with raises(ConfigError, found="'x/train'", expected="default/train"):
        find_sources([tmp_path], "x/train")


def test_what_a_split_leaves_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree(tmp_path, "train.jsonl", "test.jsonl", "eval.jsonl", "more.jsonl")
    assert texts(tmp_path, "test") == ["test.jsonl"]
    assert "skipped 1 files of split 'eval', such as eval.jsonl" in caplog.text
    assert "skipped 1 files of no split, such as more.jsonl" in caplog.text
    caplog.clear()
    assert texts(tmp_path, "train") == ["train.jsonl"]
    assert "of no split" in caplog.text
    assert "eval" not in caplog.text


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_column_of_which_path_and_rows_say_other_values(tmp_path: Path, suffix: str) -> None:
    columns = cl.writing.Columns(metadata_columns=["lang", "month"])
    for number, (lang, good) in enumerate([("en", True), ("fr", False), (None, False)]):
        path = tmp_path / str(number) / "lang=en" / "month=01" / f"a.{suffix}"
        path.parent.mkdir(parents=True)
        row = {"text": "a", "lang": lang, "month": 1}
        if suffix == "jsonl":
            path.write_text(json.dumps(row) + "\n")
        elif suffix == "csv":
            path.write_text(f"text,lang,month\na,{lang or ''},1\n")
        else:
            schema = pa.schema([("text", pa.string()), ("lang", pa.string()), ("month", pa.int32())])
            pq.write_table(pa.Table.from_pylist([row], schema), path)
        source, out = tmp_path / str(number), tmp_path / f"out{number}"
        if good:
            cl.build(source, out, tokenizer="bytes", columns=columns)
            continue
        with pytest.raises(InputError, match=r"lang: found .*, expected 'en', as the name of its folder says"):
            cl.build(source, out, tokenizer="bytes", columns=columns)
        bad: list[str] = []
        assert [*read_rows(find_sources([source])[0], None, bad.append)] == []
        assert "lang: found" in bad[0]


def test_hidden_files_are_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hidden = ".ipynb_checkpoints/a-checkpoint.jsonl", "_old/a.jsonl", "x/.b.jsonl", "x/_b.jsonl", "d.incomplete/a.jsonl"
    assert texts(tree(tmp_path, "a.jsonl", *hidden)) == ["a.jsonl"]
    assert "skipped 5 files that are no data of this directory, such as" in caplog.text
    assert texts(tmp_path / "_old") == ["_old/a.jsonl"]  # named, it is meant


def test_the_output_of_a_job(tmp_path: Path) -> None:
    tree(
        tmp_path, "part-00000.json", "part-00001.jsonl", ".part-00000.json.crc", "_SUCCESS", "_temporary/0/part-2.json"
    )
    assert texts(tmp_path) == ["part-00000.json", "part-00001.jsonl"]
    (tmp_path / "_SUCCESS").unlink()
    with raises(InputError, "_temporary", "a job that has not ended"):
        find_sources([tmp_path])


@pytest.mark.parametrize("log", ["_delta_log/0.json", "metadata/v1.metadata.json", ".hoodie/hoodie.properties"])
def test_tables_whose_log_decides(tmp_path: Path, log: str) -> None:
    tree(tmp_path / "table", "data/day=1/part-0.jsonl", log)
    for folder in (tmp_path, tmp_path / "table", tmp_path / "table" / "data", tmp_path / "table" / "data" / "day=1"):
        with raises(InputError, "table", "whose log says", fix="parquet"):
            find_sources([folder])


def test_several_revisions_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    tree(tmp_path, "refs/main", "blobs/1", "snapshots/abc/a.jsonl")
    assert texts(tmp_path) == ["snapshots/abc/a.jsonl"]
    tree(tmp_path, "snapshots/def/a.jsonl")
    with raises(InputError, "snapshots", "several revisions"):
        find_sources([tmp_path])
    assert texts(tmp_path / "snapshots" / "def") == ["snapshots/def/a.jsonl"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a-00000-of-00003.jsonl", "a-00002-of-00003.jsonl"], "2 of 3 files, without 1"),
        (["a-00000-of-00002.jsonl", "a-00001-of-00002.jsonl", "a-00000-of-00003.jsonl"], "files of 2 and of 3"),
        (["a-00000-of-00001-0a.jsonl", "a-00000-of-00001-0b.jsonl"], "number 0 twice"),
        (["a-00000-of-00001.jsonl", "a-00000-of-00001.jsonl.gz"], "number 0 twice"),
        (["x/a.00000-of-00002.jsonl", "y/a.00001-of-00002.jsonl"], "1 of 2 files"),
        (["a-00001-of-00002.jsonl", "a-00002-of-00002.jsonl"], ""),
        (["a-00001-of-00002.jsonl"], "1 of 2 files, without 0"),
        (["a-00001-of-00003.jsonl", "a-00003-of-00003.jsonl"], "2 of 3 files, without 2"),
        (["a-00000-of-00001.jsonl", "b-00000-of-00002.jsonl", "b-00001-of-00002.jsonl"], ""),
    ],
)
def test_numbered_files_are_complete(tmp_path: Path, names: list[str], problem: str) -> None:
    tree(tmp_path, *names)
    if problem:
        with raises(InputError, "-*-of-*", problem):
            input_files([tmp_path])
    else:
        assert len(input_files([tmp_path])) == len(names)
    assert len(input_files([tmp_path / name for name in names])) == len(names)  # named one by one, they are meant


def test_files_that_may_be_the_same_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert len(texts(tmp_path)) == 2
    assert f"{tmp_path}/a.jsonl.gz: found it next to {tmp_path}/a.jsonl" in caplog.text


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("a.tar", "unpack"), ("a.tar.gz", "unpack"), ("a.zip", "unpack"), ("a.jsonl.xz", "xz -dc"),
        ("a.jsonl.bz2", "bzip2 -dc"), ("a.txt", '{"text"'), ("A.ZIP", "unpack"), ("a.feather", "parquet"),
        ("a.odd", "rename"),
    ],
)  # fmt: skip
def test_what_to_do_with_other_files(tmp_path: Path, name: str, help: str) -> None:
    (tmp_path / name).write_text("x")
    with raises(ConfigError, name, "an unknown file name", fix=help):
        find_sources([tmp_path / name])


def test_endings_in_any_case(tmp_path: Path) -> None:
    table = pa.table({"text": ["a,b"]})
    for name in ("A.PARQUET", "b.parq"):
        pq.write_table(table, tmp_path / name)
    with pa.OSFile(str(tmp_path / "C.Arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "D.CSV").write_text('text\n"a,b"\n')
    (tmp_path / "E.TSV.GZ").write_bytes(gzip.compress(b"text\na,b\n"))
    (tmp_path / "f.Jsonl").write_text('{"text": "a,b"}\n')
    (tmp_path / "G.JSON").write_text('{"no": "record"}\n')
    assert texts(tmp_path) == ["a,b"] * 6


@pytest.mark.parametrize("format", ["parquet", "csv", "arrow"])
def test_columns_that_stand_in_the_names_of_folders(tmp_path: Path, format: str) -> None:
    """As Hive, Spark and pyarrow leave them out of the files."""
    table = pa.table({"text": ["a", "b", "c"], "lang": ["en", "de/x", None], "year": [1, 2, 3]})
    pd.write_dataset(table, tmp_path / "in", format=format, partitioning=["lang", "year"], partitioning_flavor="hive")
    with raises(InputError, found="columns 'lang', 'year'"):
        cl.build(tmp_path / "in", tmp_path / "out", tokenizer="bytes")
    columns = cl.writing.Columns(metadata_columns=["lang"], ignored=["year"])
    cl.build(tmp_path / "in", tmp_path / "out", tokenizer="bytes", columns=columns)
    data = cl.open_dataset(tmp_path / "out")
    places = [data.document_range(n) for n in range(3)]
    found = {chr(data.tokens(*at)[0]): data.spans("metadata", *at).decode()[0]["lang"] for at in places}
    assert found == {"a": "en", "b": "de/x", "c": None}
    with pytest.raises(InputError, match="found columns 'lang', 'year'"):  # not of the first records alone
        cl.build(tmp_path / "in", tmp_path / "no", tokenizer="bytes", columns=cl.writing.Columns())


def _cut(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[1]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_cut, "no end mark"),
        (lambda data, ends: _cut(data, ends) + bytes(64), "no end mark"),
        (lambda data, ends: data[:-8], "no end mark"),
        (lambda data, ends: data + data, "more follows"),
        (lambda data, ends: data + bytes(2 << 20) + b"x", "more follows"),
        (lambda data, ends: data + bytes(3), ""),
    ],
)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_streams_have_an_end(
    tmp_path: Path, change: Callable[[bytes, list[int]], bytes], problem: str, compression: str | None
) -> None:
    """A number of -1 is what the mark begins with."""
    table, ends = pa.table({"text": ["a", "b", "c"], "n": pa.array([1, -1, -1], pa.int32())}), []
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(f"{tmp_path}/a.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as out:
        for batch in table.to_batches(max_chunksize=1):
            out.write_batch(batch)
            ends.append(file.tell())
    path = tmp_path / "b.arrow"
    path.write_bytes(change((tmp_path / "a.arrow").read_bytes(), ends))
    if problem:
        with raises(InputError, path, problem):
            find_sources([path])
    else:
        assert texts(path) == ["a", "b", "c"]


@pytest.mark.parametrize("legacy", [False, True])
def test_other_arrow_files(tmp_path: Path, legacy: bool) -> None:
    table = pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    for name, kind in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with pa.OSFile(f"{tmp_path}/{name}.arrow", "wb") as file, kind(file, table.schema, options=options) as out:
            out.write_table(table)
        path = tmp_path / f"{name}.arrow"
        assert texts(path) == ["a", "b", "a"]
        path.write_bytes(2 * path.read_bytes())
        with raises(InputError, path, "more follows"):
            find_sources([path])


def test_corrupt_pages_of_parquet(tmp_path: Path) -> None:
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


class _Keys(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: object) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: object) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plain", [False, True])
def test_encrypted_columns_of_parquet(tmp_path: Path, plain: bool) -> None:
    """pyarrow would end the process, even where nobody wants that column."""
    plan = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=plain)
    keys = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), plan)
    table = pa.table({"text": ["one"], "secret": ["two"]})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=keys) as file:
        file.write_table(table)
    with raises(InputError, "a.parquet", "crypt"):
        find_sources([tmp_path / "a.parquet"])


def test_zeros_behind_a_member(tmp_path: Path) -> None:
    member = gzip.compress(b'{"text": "a"}\n')
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(member + bytes(200_000) + member + bytes(9))
    assert texts(path) == ["a", "a"]
    for data in (member + bytes(9) + b"x", bytes(9) + member, bytes(9)):
        path.write_bytes(data)
        with raises(InputError, path, "corrupt or truncated"):
            texts(path)


class _Hub:
    """Stands for the hub: what is asked for is there afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path, *names: str) -> None:
        self.cache, self.names, self.fetched, self.answers = cache, names, list[str](), True
        monkeypatch.setattr("huggingface_hub.HfApi.repo_info", self.repo_info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.snapshot_download)

    def repo_info(self, name: str, **_: object) -> object:
        if not self.answers:
            raise OSError("no network")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.names])

    def snapshot_download(self, name: str, *, allow_patterns: list[str], **_: object) -> str:
        from huggingface_hub.utils import filter_repo_objects

        for one in filter_repo_objects(self.names, allow_patterns=allow_patterns):
            self.fetched.append(one)
            lines(self.cache / one, one)
            if one == "README.md":
                (self.cache / one).write_text(f"---\n{CONFIGS[1][0]}\n---\n")
        return str(self.cache)


def test_of_a_repository_only_what_is_read_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = "a/0.jsonl", "a/1.jsonl", "b/x/y.jsonl", "c/1.jsonl", "c/[1].jsonl", "b.tar"
    hub = _Hub(monkeypatch, tmp_path, "README.md", *files)
    assert texts("hub:some/one:dev") == ["c/1.jsonl"]
    assert hub.fetched == ["README.md", "c/1.jsonl"]
    with raises(ConfigError, found="train (2 files), dev (1 file)"):
        find_sources(["hub:some/one"])
    hub.fetched.clear()
    assert texts("hub:some/one/c") == ["c/1.jsonl", "c/[1].jsonl"]
    assert texts("hub:some/one/c/[1].jsonl@main") == ["c/[1].jsonl"]
    assert {*hub.fetched} == {"c/[1].jsonl"}
    with raises(ConfigError, found="split 'dev' of a file"):
        find_sources(["hub:some/one/c/1.jsonl:dev"])
    with raises(ConfigError, "b.tar", fix="unpack"):
        find_sources(["hub:some/one/b.tar"])
    with raises(ConfigError, "hub:some/one:x", "split 'x' of a model"):
        load_tokenizer("hub:some/one:x")
    hub.answers = False  # then from what is here, or what a name alone tells
    hub.fetched.clear()
    assert texts("hub:some/one/c") == ["c/1.jsonl", "c/[1].jsonl"]
    assert {*hub.fetched} == {"c/1.jsonl", "c/[1].jsonl"}
    assert texts("hub:some/one", "train") == ["a/0.jsonl", "b/x/y.jsonl"]


def test_ids_that_are_missing_or_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"id": n, "text": "a"} for n in range(100)]
    rows += [{"text": "none"}, {"id": "7", "text": "b"}, {"id": "7", "text": "c"}, {"id": "x", "text": "d"}]
    path = tmp_path / "in.jsonl"
    write_rows(path, rows)
    given = {"tokenizer": "bytes", "shard_input_bytes": 500}
    with raises(InputError, tmp_path / "out", "3 of 104 documents have an id that another one has, such as '7'"):
        cl.build(path, tmp_path / "out", unique_ids=True, **given)  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "manifest.json").exists()
    summary = cl.build(path, tmp_path / "out", **given)  # type: ignore[arg-type]
    assert summary.kept_shards == summary.shards > 2
    assert summary.ids is not None
    assert vars(summary.ids) == {"documents": 104, "missing": 1, "repeated": 3, "examples": ["7"]}
    build = ["build", str(path), "--out", str(tmp_path / "out"), "--tokenizer", "bytes", "--shard-input-bytes", "500"]
    assert main(build) == 0
    shown = capsys.readouterr().out
    assert "3 of 104 documents have an id that another one has, such as '7'" in shown
    assert "1 of 104 documents have no id" in shown
    assert main([*build, "--unique-ids"]) == 1
    write_rows(path, rows[:100])
    assert main([*build, "--unique-ids", "--overwrite"]) == 0
    write_rows(path, rows[:101])
    assert main([*build, "--unique-ids", "--overwrite"]) == 1
    assert "1 of 101 documents have no id" in capsys.readouterr().err


def test_ids_are_compared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, also for an id that many documents have; equal hashes of other ids are none."""
    from conceptloader.ingest.build import ids

    names = [f"d{n // 2}" for n in range(200)] + [f"e{n}" for n in range(300)] + ["many"] * 500
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": "a"}) + "\n" for name in names))
    for part, chunk in ((1 << 22, 1 << 19), (64, 7)):
        monkeypatch.setattr(ids, "_PART", part)
        monkeypatch.setattr(ids, "_CHUNK", chunk)
        summary = cl.build(path, tmp_path / "out", tokenizer="bytes", shard_input_bytes=3000)
        assert summary.ids is not None
        assert (summary.ids.repeated, len(summary.ids.examples)) == (700, 3)
        assert {*summary.ids.examples} <= {*names}
    monkeypatch.setattr("conceptloader.format.write.tables.xxhash.xxh3_64_intdigest", lambda one: one[0])
    path.write_text("".join(json.dumps({"id": name, "text": "a"}) + "\n" for name in ("a1", "a2", "b1", "b1")))
    other = cl.build(path, tmp_path / "hashed", tokenizer="bytes").ids
    assert other is not None
    assert (other.repeated, other.examples) == (2, ["b1"])


def test_what_datasets_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each directory has the rows that `datasets` itself reads from it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_dict({"id": [*"abcdef"], "text": [f"t{n}" for n in range(6)]}).save_to_disk("a", num_shards=2)
    loaded = datasets.load_from_disk("a")
    loaded.map(lambda row: {"text": row["text"].upper()})
    assert any(name.startswith("cache-") for name in os.listdir("a"))
    assert texts("a") == loaded["text"][:]
    for name, other in (("b", loaded.shuffle(seed=1)), ("c", loaded.select([1, 3])), ("d", loaded.filter(bool))):
        other.save_to_disk(name)
        assert texts(name) == other["text"][:]
    splits = loaded.train_test_split(test_size=2, seed=0)
    splits.save_to_disk("e")
    for name in splits:
        splits[name].to_parquet(f"f/data/{name}-00000-of-00001.parquet")
    again = datasets.load_dataset("f", cache_dir="cache")
    again["train"].map(lambda row: {"text": row["text"].upper()})
    datasets.load_dataset_builder("f", cache_dir="more").download_and_prepare("g", file_format="parquet")
    for folder in ("e", "f", "g", "cache"):
        for name in splits:
            assert texts(folder, name) == splits[name]["text"][:]
        with raises(ConfigError, found="test (1 file)"):
            find_sources([folder])
    for number, (head, split, _) in enumerate(CONFIGS):
        config = str(split).partition("/")[0] if str(split).startswith(("one", "two", "y/")) else None
        folder = str(repository(Path(f"r{number}"), head))
        files = datasets.load_dataset_builder(folder, config, cache_dir="more").config.data_files
        read = files["validation" if "validation" in files and split == "validation" else str(next(iter(files)))]
        read = files["dev"] if "dev" in files and split == "validation" else read
        assert sorted(map(os.path.realpath, read)) == sorted(
            os.path.realpath(file.path) for file in input_files([folder], split)
        )
