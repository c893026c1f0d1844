"""Every kind of bad input: an error that names file and line, finished shards kept, no manifest."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.vocabulary import load_vocabulary
from tests.corpora.records import build, content, write_rows
from tests.corpora.tokenizers import byte_level
from tests.raises import raises

GOOD = '{"id": "good", "text": "abc", "spans": [{"start": 0, "end": 2, "concepts": ["animal"]}]}'
COLUMNS = Columns(metadata="metadata")


def text(**more: Any) -> str:
    return json.dumps({"text": "abc", **more})


def span(start: Any = 0, end: Any = 2, concepts: Any = ("animal",), **more: Any) -> str:
    return text(spans=[{"start": start, "end": end, "concepts": concepts, **more}])


LINES: list[tuple[str | bytes, str]] = [
    (b'{"text": "a\xff"}', "byte 0xff at byte 11 of the line, which is not UTF-8"),
    ('{"text": "a\\ud800"}', "half of a surrogate pair at character 1"),
    ('{"id": "a\\ud800", "text": "a"}', "half of a surrogate pair"),
    ('{"text": "a"', "broken JSON"),
    ('{"text": "a"} {"text": "b"}', "broken JSON"),
    ("[1, 2]", "a JSON list, expected one object per line"),
    ('{"text": ' + "[" * 100_000, "JSON"),
    ('{"text": "a", "spans": [{"start": NaN, "end": 1, "concepts": []}]}', "found NaN"),
    ('{"text": "a", "x": -Infinity}', "found -Infinity"),
    ('{"id": "a", "spans": []}', "expected 'text'"),
    ('{"text": "a", "id": "b", "text": "c"}', "the duplicate key 'text'"),
    ('{"text": "a", "te\\u0078t" : "c"}', "the duplicate key 'text'"),
    ('{"text": "abc", "spans": [{"start": 0, "end": 1, "end": 2, "concepts": []}]}', "the duplicate key 'end'"),
    ('{"text": "a", "metadata": {"n": 1, "n": 2}}', "the duplicate key 'n'"),
    ('{"text": "a", "metadata": {"n": [-1e400]}}', "found -1e400"),
    (text(metadata=[1]), "metadata: found [1], expected an object"),
    ('{"text": "a", "spam": 1}', "found column 'spam'"),
    ('{"text": 5}', "text: found 5"),
    ('{"text": null}', "text: found None"),
    ('{"id": [1], "text": "a"}', "id: found"),
    ('{"id": "a\\u0000", "text": "a"}', "id: found"),
    (text(spans={"start": 0}), "'spans': found type struct<start: int64>, expected a list of structs"),
    (text(spans=0), "'spans': found type int64, expected a list of structs"),
    (text(spans=[3]), "expected a list of structs"),
    (text(spans=[{"start": 0, "end": 1}]), "'spans.concepts': found null, expected a value"),
    (span(score=1), "expected a list of structs with start, end and concepts"),
    (span(start=0.0), "'spans.start': found type double, expected integers"),
    (span(start=True), "'spans.start': found type bool, expected integers"),
    (span(concepts="animal"), "'spans.concepts': found type string, expected a list"),
    (span(end=4), "found span [0, 4), expected a span within the 3 characters"),
    (span(start=-1), "found span [-1, 2)"),
    (span(start=2, end=1), "found [2, 1)"),
    (span(end=10**30), "spans.end: found what uint64 cannot hold"),
    (span(end=2**62), "expected a span within the 3 characters"),
    (span(concepts=["animal", "plant"]), "the unknown concept 'plant'"),
    (span(concepts=[4]), "found the concept 4"),
    (span(concepts=[-1]), "found the concept -1"),
    (span(concepts=[0.5]), "found concepts of type double"),
    (span(concepts=[True]), "found concepts of type bool"),
    (span(concepts=[["animal"]]), "found concepts of type large_list"),
    (span(concepts=["animal", 0]), "spans.concepts: found 'animal' and 0, expected values of one type"),
    (text(spans=[{"start": a, "end": a + 2, "concepts": []} for a in (0, 1)]), "expected spans that do not overlap"),
]
TOKENS: list[tuple[str | bytes, str]] = [
    ('{"tokens": [1, 300], "w": [1, 1]}', "found token 300 at position 1"),
    ('{"tokens": [-1], "w": [1]}', "found token -1 at position 0"),
    ('{"tokens": [1, 2.0], "w": [1, 1]}', "'tokens': found type double, expected integers"),
    ('{"tokens": [true], "w": [1]}', "'tokens': found type bool, expected integers"),
    ('{"tokens": null, "w": [1]}', "tokens: found null, expected a list"),
    ('{"tokens": [1' + "0" * 30 + '], "w": [1]}', "tokens: found what uint64 cannot hold"),
    ('{"tokens": [1], "w": [18446744073709551616]}', "w: found what uint64 cannot hold"),
    ('{"tokens": [1], "w": [256]}', "w: found 256, expected a number that uint8 holds"),
    ('{"tokens": [1], "w": [-1e400]}', "found -1e400"),
    ('{"tokens": [1], "w": [1, 2]}', "w: found 2 values, expected 1"),
    ('{"tokens": [1], "w": ["1"]}', "found type string, expected numbers"),
    ('{"tokens": [1]}', "w: found 0 values, expected 1"),
    ('{"tokens": [1, 2], "w": [1, true]}', "w: found 1 and True, expected values of one type"),
    ('{"tokens": [1], "w": [1], "tokens": [2]}', "the duplicate key 'tokens'"),
    ('{"tokens": [1], "w": [1], "t\\u006fkens": [2]}', "the duplicate key 'tokens'"),
    ('{"tokens": [1], "w": [1], "spans": [{"start": 0, "end": 2, "concepts": []}]}', "within the 1 tokens"),
]
OF_TOKENS: dict[str, Any] = {
    "vocab_size": 300, "append_eos": False, "columns": Columns(text=None, tokens="tokens", fields={"w": "u1"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "good", "more"),
    [(LINES, GOOD, {"columns": COLUMNS}), (TOKENS, '{"tokens": [1], "w": [1]}', OF_TOKENS)],
    ids=["text", "tokens"],
)
def test_lines(tmp_path: Path, bad: list[tuple[str | bytes, str]], good: str, more: dict[str, Any]) -> None:
    """All of them in one file, each between two good lines, a blank one before it."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    lines = [line if isinstance(line, bytes) else line.encode() for line, _ in bad]
    source.write_bytes(b"".join(good.encode() + b"\n\n" + line + b"\n" for line in lines) + good.encode())
    found: list[tuple[str, str, str]] = []
    with pytest.raises(InputError, match=r"in.jsonl: line \d+: .*; no shard is finished: run again with --bad-records"):
        build([source], out, **more)
    assert [name for name in content(out) if name.startswith(("00000", "manifest"))] == []
    summary = build([source], out, on_bad=lambda *record: found.append(record), **more)
    assert (summary.documents, summary.bad_records) == (len(bad) + 1, len(bad))
    assert {path for path, _, _ in found} == {str(source)}
    told = {where: problem for _, where, problem in found}
    expected = {f"line {3 * k + 3}": part for k, (_, part) in enumerate(bad)}
    assert told.keys() == expected.keys()
    assert [(told[where], part) for where, part in expected.items() if part not in told[where]] == []
    assert cl.open_dataset(out).num_documents == len(bad) + 1


def test_a_record_that_only_its_place_makes_wrong(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(f"{GOOD}\n{span(end=4)}\n")
    with pytest.raises(InputError, match=r"in.jsonl: line 2: concepts: found span \[0, 4\)"):
        build([tmp_path / "in.jsonl"], tmp_path / "out")


def table(**columns: Any) -> pa.Table:
    return pa.table({k: values if isinstance(values, pa.Array) else pa.array(values) for k, values in columns.items()})


def spans_of(*rows: Any) -> Any:
    return [[{"start": start, "end": end, "concepts": concepts}] for start, end, concepts in rows]


FINE = (0, 1, ["animal"])
TWO = ["ab", "ab"]
TABLES: list[tuple[pa.Table, str, str]] = [
    (table(text=["ab", "a"], spans=spans_of(FINE, (0, 2, ["animal"]))), "row 1: ", "within the 1 char"),
    (table(text=TWO, spans=spans_of(FINE, (2, 1, ["animal"]))), "row 1: ", r"found \[2, 1\)"),
    (table(text=TWO, spans=spans_of(FINE, (0, 1, ["plant"]))), "row 1: ", "concept 'plant'"),
    (table(text=TWO, spans=spans_of(FINE, (0, 1, [None]))), "row 1: ", "found null"),
    (table(text=TWO, spans=spans_of(FINE, (None, 1, ["verb"]))), "row 1: ", "found null"),
    (table(text=TWO, spans=[*spans_of(FINE), [None]]), "row 1: ", "found null"),
    (table(text=["ab", None]), "row 1: ", "expected a string"),
    (table(text=pa.array([b"ab", b"a\xff"]).view("string")), "row 1: ", "not UTF-8"),
    (table(text=["ab"], spans=spans_of((0, float("nan"), ["verb"]))), "", "found type double"),
    (table(text=["ab"], spans=["x"]), "", "found type string, expected a list of structs"),
    (table(text=["ab"], spans=[[{"start": 0}]]), "", "expected a list of structs"),
    (table(text=["ab"], spam=[1]), "", "found column 'spam'"),
    (table(spam=[1]), "", "expected 'text'"),
    (
        table(text=TWO, metadata=pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_("string", "int64"))),
        "row 1: ",
        "the duplicate key 'k'",
    ),
    (
        table(text=TWO, metadata=pa.array([None, [(1, 2)]], pa.map_("int64", "int64"))),
        "row 1: ",
        "found a map with the key 1",
    ),
    (table(text=TWO, x=pa.array([0, 10**15], pa.timestamp("s"))), "row 1: ", "too large|out of range"),
    (table(text=["ab"], x=pa.array([1], pa.time64("ns"))), "", r"found time64\[ns\]"),
    (table(text=TWO, x=pa.array([1000, 1001], pa.duration("ns"))), "row 1: ", "anosecond"),
    (table(tokens=[[1], [2, 300]]), "row 1: ", "found token 300 at position 1"),
    (table(tokens=[[1], [2, None]]), "row 1: ", "found null"),
    (table(tokens=[[1], None]), "row 1: ", "found null, expected a list"),
    (table(tokens=[[1.0]]), "", "found type double"),
    (table(tokens=[[1], [2]], w=[[1], [1, 2]]), "row 1: ", "w: found 2 values, expected 1"),
]


@pytest.mark.parametrize(("found", "where", "message"), TABLES)
def test_tables(tmp_path: Path, found: pa.Table, where: str, message: str) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(found, source)
    more: dict[str, Any] = {"vocab_size": 300, "append_eos": False} if "tokens" in found.column_names else {}
    if "x" in found.column_names:
        more["columns"] = Columns(metadata_columns=["x"])
    elif "w" in found.column_names:
        more = OF_TOKENS
    with pytest.raises(InputError, match=f"{source}: {where}.*({message})"):
        build([source], tmp_path / "out", **more)
    if where:
        assert build([source], tmp_path / "out", on_bad=lambda *_: None, **more).documents == 1


def test_times_as_text(tmp_path: Path) -> None:
    kinds = [pa.time64("us"), pa.timestamp("ns", "UTC"), pa.duration("us"), pa.duration("ns"), pa.date32()]
    columns = {str(i): pa.array([1000], pa.int64()).cast(kind) for i, kind in enumerate(kinds[:-1])}
    given = pa.table({"text": ["ab"], **columns, "4": pa.array([1000], pa.int32()).cast(kinds[-1])})
    pq.write_table(given, tmp_path / "in.parquet")
    build([tmp_path / "in.parquet"], tmp_path / "out", columns=Columns(metadata_columns=list("01234"), tracks={}))
    [found] = cl.open_dataset(tmp_path / "out").spans("metadata", 0, 3).decode()
    times = ["00:00:00.001000", "1970-01-01T00:00:00.000001+00:00", "0:00:00.001000", "0:00:00.000001", "1972-09-27"]
    assert [found[name] for name in "01234"] == times


def test_large_integers_of_fields_are_kept(tmp_path: Path) -> None:
    large = [2**63 + 1, 2**53 + 1, 3]
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"tokens": [1], "w": [value]}) + "\n" for value in [*large, 1.0])
    )
    columns = Columns(text=None, tokens="tokens", fields={"w": "u8"})
    build([tmp_path / "in.jsonl"], tmp_path / "out", vocab_size=300, append_eos=False, columns=columns)
    assert cl.open_dataset(tmp_path / "out").fields(0, 4)["w"].tolist() == [*large, 1]
    for other in (0.0, -1):
        (tmp_path / "both.jsonl").write_text(json.dumps({"tokens": [1, 2], "w": [2**63 + 1, other]}))
        with pytest.raises(InputError, match=r"line 1: w: found what (double|int64) cannot hold"):
            build([tmp_path / "both.jsonl"], tmp_path / "both", vocab_size=300, append_eos=False, columns=columns)


def test_damaged_files(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    source.write_bytes(b"PAR1 this is not parquet")
    with raises(InputError, "in.parquet", "cannot be read as parquet"):
        build([source], tmp_path / "out")


@pytest.mark.parametrize("data", ["", "\n\n", " \n"])
def test_empty_corpora(tmp_path: Path, data: str) -> None:
    (tmp_path / "in").mkdir()
    with raises(InputError, found="empty corpus"):
        build([tmp_path / "in"], tmp_path / "out")
    source = tmp_path / "in" / "a.jsonl"
    source.write_text(data)
    with raises(InputError, "a.jsonl", "an empty corpus"):
        build([source], tmp_path / "out")
    with pytest.raises(InputError, match=r"empty corpus|no token"):
        build([source], tmp_path / "out", columns=Columns())
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "in" / "b.parquet")
    with pytest.raises(InputError, match=r"empty corpus|no token"):
        build([tmp_path / "in" / "b.parquet"], tmp_path / "out2")


def test_line_numbers_in_later_pieces_and_long_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text((GOOD + "\n") * 50 + "oops\n" + (GOOD + "\n") * 50)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"in.jsonl: line 51: .*8 of 9 shards are finished and kept"):
        build([source], out, shard_input_bytes=1000)
    finished = {name for name in content(out) if name.endswith(".shard.json")}
    assert len(finished) == 8
    with pytest.raises(ConfigError, match=r"other options \(extra.ingest.append_eos: found true, expected false\); "):
        build([source], out, shard_input_bytes=1000, append_eos=False)
    before = {name: (out / name).stat().st_mtime_ns for name in finished}
    summary = build([source], out, shard_input_bytes=1000, on_bad=lambda *_: None)
    assert (summary.kept_shards, summary.documents) == (8, 100)
    assert {name: (out / name).stat().st_mtime_ns for name in finished} == before


def test_arguments(tmp_path: Path) -> None:
    with raises(ConfigError, found="no such file"):
        build([tmp_path / "none.jsonl"], tmp_path / "out")
    (tmp_path / "a.txt").write_text("a,b")
    with raises(ConfigError, found="unknown file name"):
        build([tmp_path / "a.txt"], tmp_path / "out")
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD)
    with raises(ConfigError, found="it twice"):
        build([source, source], tmp_path / "out")
    with raises(ConfigError, "vocabularies", "track 'topic'"):
        build([source], tmp_path / "out", vocabularies={"topic": ["a"]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\nb\n", "line 2: found ''"),
        (b"a\nb\na\n", "line 3: found 'a' as in line 1"),
        (b"a\n\xff\n", "line 2: found bytes that are not UTF-8"),
        (b'["a", 3]', "element 2: found 3"),
        (b'["a", ', "broken JSON"),
        (b"", "found no names"),
    ],
)
def test_vocabularies(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        load_vocabulary(path)


@pytest.mark.parametrize("name", ["none.txt", ""])
def test_no_vocabulary(name: str, tmp_path: Path) -> None:
    with raises(ConfigError, f"vocabulary {tmp_path / name}", "no such file", fix="--vocabulary"):
        load_vocabulary(tmp_path / name)


def test_good_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    for data in ("a\r\nb c\r\n", "a\nb c", '["a", "b c"]'):
        path.write_bytes(data.encode())
        assert load_vocabulary(path) == ["a", "b c"]


def test_many_bad_records_of_a_block(tmp_path: Path) -> None:
    """Whichever stage finds them: that which parses, places or cuts."""
    made = byte_level()
    made.add_special_tokens(["<|x|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    wrong: list[dict[str, Any]] = [{"text": 7}, {"text": "abc", "spans": [{"start": 0, "end": 9, "concepts": ["a"]}]}]
    wrong.append({"text": "a<|x|>"})
    rows = [wrong[k // 3 % 3] if k % 3 == 0 else {"id": str(k), "text": "ab"} for k in range(600)]
    options: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer.json"), "eos": "<|x|>", "special_tokens": "error"}
    options |= {"vocabulary": {"concepts": ["a"]}, "column": {"spans": "spans"}}
    write_rows(tmp_path / "in.jsonl", rows)
    write_rows(tmp_path / "good.jsonl", [row for k, row in enumerate(rows) if k % 3])
    bad: list[Any] = []
    cl.build(tmp_path / "in.jsonl", tmp_path / "some", on_bad=lambda *found: bad.append(found), **options)
    assert [where for _, where, _ in bad] == [f"line {k + 1}" for k in range(0, 600, 3)]
    cl.build(tmp_path / "good.jsonl", tmp_path / "all", **options)
    found, wanted = content(tmp_path / "some"), content(tmp_path / "all")
    assert all(name.endswith(".json") for name in wanted if found[name] != wanted[name])


@pytest.mark.parametrize("bad", [{0, 1}, {0, 1, 2}, {1, 2}, {0, 2, 4}, {*range(0, 40, 3), *range(20)}])
@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()], ids=str)
def test_many_bad_rows_of_a_table(bad: set[int], kind: Any, tmp_path: Path) -> None:
    """In whatever type, also where no row or no neighbours are left, and in a field of spans that pyarrow rejects."""
    rows = [
        {"text": "abc", "spans": [{"start": 0, "end": 3, "concepts": None if k in bad else ["a"]}]}
        for k in range(max(bad) + 2)
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.set_column(0, "text", table["text"].cast(kind)), tmp_path / "in.parquet")
    found: list[Any] = []
    options: dict[str, Any] = {"tokenizer": "bytes", "vocabulary": {"concepts": ["a"]}}
    made = cl.build(tmp_path / "in.parquet", tmp_path / "out", on_bad=lambda *one: found.append(one), **options)
    assert [where for _, where, _ in found] == [f"row {k}" for k in sorted(bad)]
    assert made.documents == len(rows) - len(bad)


NO_VOCABULARY = {"text": "abc", "spans": [{"start": 0, "end": 3, "concepts": ["x"]}]}
ADVICE: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "an option is missing": ([NO_VOCABULARY, *[{"text": "abc"}] * 20], False),
    "all are bad": ([{"text": ["a"]}] * 20, False),
    "one is bad": ([{"text": "a"}, {"text": ["a"]}, *[{"text": "b"}] * 20], True),
    "there is only one": ([{"text": ["a"]}], True),
}


@pytest.mark.parametrize("case", ADVICE)
def test_bad_records_are_left_out_only_where_others_are_good(case: str, tmp_path: Path) -> None:
    rows, advised = ADVICE[case]
    write_rows(tmp_path / "in.jsonl", rows)
    with pytest.raises(InputError) as caught:
        cl.build(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes")
    assert ("--bad-records" in str(caught.value)) == advised


def test_a_build_that_left_out_all_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": 7}\n' * 500)
    bad = tmp_path / "bad.jsonl"
    words = ["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), "--tokenizer", "bytes", "--quiet"]
    for left in ("; 500 bad records were skipped", ""):  # by the first run
        assert main([*words, "--bad-records", str(bad)]) == 1
        said = capsys.readouterr().err
        assert f"no token in any shard{left}, expected at least one token; {bad} lists bad records" in said


@pytest.mark.parametrize("shards", [1, 3])
def test_an_error_is_said_once_where_nothing_goes_on(
    shards: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And at once where other shards take hours more."""
    for k in range(shards):
        (tmp_path / f"{k}.jsonl").write_text('{"text": 7}\n' if k == 0 else '{"text": "a"}\n')
    with pytest.raises(InputError, match=r"0.jsonl: line 1: text: found 7"):
        cl.build([*tmp_path.glob("*.jsonl")], tmp_path / "out", tokenizer="bytes", shard_input_bytes=20)
    assert ("0.jsonl: line 1: text: found 7" in caplog.text) == (shards > 1)
