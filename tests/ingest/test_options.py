"""Options in Python: each wrong kind of value is an error that names the option; one path is one path everywhere."""

import ast
import subprocess
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from tests.corpora.records import write_rows

WRONG = """
build no_eos ["no", "false", 0]
build chat ["yes"]
build metadata_column ["url"]
build ignore_column ["url", None, {"url"}]
build levels [0, "3", 2.0, True, 1000000]
build max_unaligned_spans ["0.5", 2]
build shard_input_bytes ["1M", 0, 1.5]
build vocabulary [None, "v.txt", ["a"], {"concepts": {"a": 1}}, {"concepts": ["a", 1]}]
build number [["q:f4"], {"q": 5}]
build column [None, ["id=id"]]
build tokenizer [5]
build align ["x"]
build special_tokens ["ctl"]
build mode ["Document"]
build workers ["2", -1, 0]
build task [3, (2, 2), (0, 0), (-1, 2), ("0", 2)]
annotate track [5]
annotate parameters ['{"dtype": "f4"}']
annotate column [["start=start"]]
annotate sort_memory ["96M"]
annotate vocabulary [{"t": "v.txt"}, {"t": ["a"]}, 5]
annotate codec ["foo"]
adopt document_end ["0", 1.0]
adopt dtype [">u2", "f4"]
adopt ignore_loss_mask ["x"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in.jsonl"), [{"id": "x", "text": "A dog.", "spans": [{"start": 0, "end": 1, "concepts": [0]}]}])
    write_rows(Path("rows.jsonl"), [{"id": "x", "start": 2, "end": 5, "concepts": [0]}])
    np.array([5, 6, 0, 7], "<u2").tofile("p.npy")
    return tmp_path


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_each_wrong_kind_of_value_is_refused(folder, row):
    name, option, values = row.split(" ", 2)
    cl.build("in.jsonl", "ds", tokenizer="bytes")
    for value in ast.literal_eval(values):
        right, given = {
            "build": (["in.jsonl", "out"], {"tokenizer": "bytes"}),
            "annotate": (["ds", "rows.jsonl", "out"], {"track": "t"}),
            "adopt": (["p.npy", "out"], {"dtype": "u2"}),
        }[name]
        with pytest.raises(cl.errors.ConfigError) as error:
            getattr(cl, name)(*right, **{**given, option: value})
        assert error.value.path.startswith(option), error.value
        assert error.value.expected
        assert error.value.fix
        assert not (folder / "out").exists()


def test_one_path(folder):
    assert cl.build("in.jsonl", "ds", tokenizer="bytes").documents == 1
    cl.annotate("ds", "rows.jsonl", "more", track="t", span_unit="character")
    assert cl.open_dataset("more").spans("t", 0, 7).start.tolist() == [2]
    cl.adopt("p.npy", "flat", dtype="uint16")
    assert cl.open_dataset("flat").tokens(0, 4).tolist() == [5, 6, 0, 7]
    for call in (lambda: cl.build(5, "o", tokenizer="bytes"), lambda: cl.adopt([5], "o")):
        with pytest.raises(cl.errors.ConfigError, match="expected a path, or a list of paths"):
            call()


def test_fixes_can_be_typed(folder):
    """No option that the command lacks, and quotes that a shell and SQL take."""
    (folder / 'it\'s "$a".csv').write_text("a\n1\n")
    with pytest.raises(cl.errors.ConfigError) as error:
        cl.build('it\'s "$a".csv', "o", tokenizer="bytes")
    typed = error.value.fix.partition(": ")[2].replace("duckdb -c", "printf %s", 1)
    found = subprocess.run(["sh", "-c", typed], check=True, capture_output=True, text=True)
    assert found.stdout.startswith("COPY (FROM read_csv('it''s \"$a\".csv',")
    write_rows(Path("other.jsonl"), [{"id": "x", "text": "A dog.", "more": 1}])
    with pytest.raises(cl.errors.ConceptloaderError) as error:
        cl.build("other.jsonl", "o", tokenizer="bytes")
    assert "--track" not in str(error.value)
    assert "--ignore-column" in str(error.value)
    cl.build("in.jsonl", "ds", tokenizer="bytes")
    write_rows(Path("twice.jsonl"), [{"id": "x", "start": k, "end": 5, "value": k} for k in range(2)])
    given = {"track": "t", "codec": "numpy", "parameters": {"dtype": "u1"}, "span_unit": "character"}
    for call, fixed in (
        (lambda: cl.annotate("ds", "rows.jsonl", "o", track="t", vocabulary="t=v.txt"), "a file of names to"),
        (lambda: cl.annotate("ds", "twice.jsonl", "o", **given), "union for concepts"),
    ):
        with pytest.raises(cl.errors.ConceptloaderError, match=fixed):
            call()
