"""What is selected is what a loop over the documents selects; the language, its tasks and its errors."""

import dataclasses
import json
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import documents
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.corpora.records import write_rows
from tests.raises import cells, raises

COUNT = 230
NAMES = ["law", "medicine", "red wine", "news"]


def facts(number):
    rng = np.random.default_rng(number)
    concepts = sorted({int(one) for one in rng.integers(0, 4, int(rng.integers(0, 4)))})
    return {
        "tokens": int(rng.integers(1, 60)),
        "concepts": [NAMES[one] for one in concepts],
        "topics": [int(one) + 5 for one in concepts],
        "quality": None if number % 9 == 0 else round(float(rng.random()), 3),
        "about": None if number % 7 == 0 else json.dumps({"lang": "en" if number % 2 else "fr", "n": number}),
        "id": None if number % 11 == 0 else f"doc-{number}",
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Concepts on two tokens, each with a span of its own; quality of the whole document, in two halves."""
    tracks = {
        "concepts": cl.writing.TrackOptions(vocabulary=NAMES),
        "topics": cl.writing.TrackOptions(),
        "quality": cl.writing.TrackOptions(codec="numpy", parameters={"dtype": "f4"}),
        "about": cl.writing.TrackOptions(codec="json"),
    }
    tokenizer = cl.writing.Tokenizer(name="bytes", vocab_size=257, eos_id=256)
    path = tmp_path_factory.mktemp("select") / "data"
    build = cl.writing.create_writer(path, cl.writing.BuildOptions(tokenizer=tokenizer, tracks=tracks), plan=[0, 1, 2])
    for shard in range(3):
        with build.shard(shard) as writer:
            for number in range(COUNT * shard // 3, COUNT * (shard + 1) // 3):
                one, spans = facts(number), defaultdict(list)
                for k, name in enumerate(one["concepts"][: one["tokens"]]):
                    spans["concepts"].append((k, k + 1, [NAMES.index(name)]))
                    spans["topics"].append((k, k + 1, [one["topics"][k]]))
                middle = one["tokens"] // 2
                if one["quality"] is not None:
                    halves = [(0, middle, one["quality"] - 0.25), (middle, one["tokens"], one["quality"] + 0.25)]
                    halves = halves if middle else [(0, one["tokens"], one["quality"])]
                    spans["quality"] = [(a, b, np.array([value], np.float32)) for a, b, value in halves]
                if one["about"] is not None:
                    spans["about"] = [(0, one["tokens"], json.loads(one["about"]))]
                writer.add_document([number % 256] * one["tokens"], spans=spans, id=one["id"] or "")
            writer.add_document([], id="empty")
    cl.writing.finalize(path)
    return path


def selected(view):
    """Numbers of the facts, as the tokens have them."""
    with cl.open_dataset(view, roots=["/"]) as dataset:
        return [int(dataset.tokens(*dataset.document_range(k))[0]) for k in range(len(dataset))]


def ids(view):
    with cl.open_dataset(view, roots=["/"]) as dataset:
        return [dataset.document_id(k) for k in range(len(dataset))]


QUALITY = [facts(k)["quality"] for k in range(COUNT)]
HAS = [set(facts(k)["concepts"][: facts(k)["tokens"]]) for k in range(COUNT)]
LENGTH = [facts(k)["tokens"] for k in range(COUNT)]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("quality >= 0.7 and 'medicine' in concepts", lambda k: (QUALITY[k] or 0) >= 0.7 and "medicine" in HAS[k]),
        ("quality is null", lambda k: QUALITY[k] is None),
        ("list_has_any(concepts, ['law', 'red wine'])", lambda k: bool(HAS[k] & {"law", "red wine"})),
        ("len(concepts) = 0 or not (5 in topics)", lambda k: not HAS[k] or "law" not in HAS[k]),
        ("'law' in concepts = ('law' in concepts) and 'law' not in concepts", lambda k: "law" not in HAS[k]),
        ("tokens + length('a) in (') > 60", lambda k: LENGTH[k] + 7 > 60),
        ("tokens\n>\t50 -- so", lambda k: LENGTH[k] > 50),
    ],
)
def test_sql(path, tmp_path, where, holds, monkeypatch):
    monkeypatch.setattr(documents, "CHUNK", 37)
    found = make_subsets(path, tmp_path / "view", SubsetOptions(where=where))
    expected = [k for k in range(COUNT) if holds(k)]
    assert selected(tmp_path / "view") == expected
    assert found.documents == COUNT + 3
    assert found.views[str(tmp_path / "view")] == (len(expected), sum(LENGTH[k] for k in expected))


def test_ids_shares_and_metadata(path, tmp_path):
    (tmp_path / "ids.txt").write_text("doc-5\n\ndoc-78\ndoc-nobody\ndoc-5\n")
    assert main(["subset", str(path), "--ids", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "ids"), "-q"]) == 0
    assert selected(tmp_path / "ids") == [5, 78]
    for seed in (0, 1):
        make_subsets(path, tmp_path / f"share-{seed}", SubsetOptions(where="share < 0.3", seed=seed))
        make_subsets(path, tmp_path / f"rest-{seed}", SubsetOptions(where="share >= 0.3", seed=seed))
        some, rest = selected(tmp_path / f"share-{seed}"), selected(tmp_path / f"rest-{seed}")
        assert sorted([*some, *rest]) == list(range(COUNT))
        assert 0.2 < len(some) / COUNT < 0.4
    assert selected(tmp_path / "share-0") != selected(tmp_path / "share-1")
    rows = [{"id": f"doc-{k}", "domain": "ab"[k % 2], "score": k / COUNT} for k in range(0, COUNT, 3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "meta.parquet")
    expected = [k for k in range(0, COUNT, 3) if k % 2 and k / COUNT > 0.5 and k % 11]
    for number, where in enumerate((
        "id in (select id from t where domain = 'b' and score > 0.5)",
        "(select domain = 'b' and score > 0.5 from t where t.id = documents.id)",
    )):  # fmt: skip
        words = ["subset", path, "--where", where, "--table", f"t={tmp_path}/meta.parquet"]
        words += ["--out", tmp_path / f"{number}"]
        assert main([*map(str, words)]) == 0
        assert selected(tmp_path / f"{number}") == expected
    pq.write_table(pa.Table.from_pylist([*rows, rows[1]]), tmp_path / "twice.parquet")
    twice = "(select score from t where t.id = documents.id) > 0"
    with raises(ConfigError, "where"):
        make_subsets(path, tmp_path / "no", SubsetOptions(where=twice, tables=[f"t={tmp_path}/twice.parquet"]))


def test_names_of_topics(tmp_path):
    """Directories have plain names, the subsets their values; two of one name are an error."""
    rows = {"sci & tech": "sci-tech", "law/tax (EU)": "law-tax-EU", "..a": "a", "Kunst.": "Kunst."}
    documents = [
        dataclasses.replace(one, spans={"topic": [(0, len(one.tokens), [k % len(rows)])]})
        for k, one in enumerate(random_documents(12))
    ]
    write_dataset(tmp_path / "web", documents, vocabularies={"topic": list(rows)})
    ask = SubsetOptions(by="topic[1]")
    found = make_subsets(tmp_path / "web", tmp_path / "by", ask)
    assert {Path(place).name for place in found.views} == {f"by-{name}" for name in rows.values()}
    assert cl.open_dataset(tmp_path / "by-sci-tech").num_documents == 3
    write_dataset(tmp_path / "two", documents, vocabularies={"topic": ["a b", "a/b", "c", "d"]})
    with raises(ConfigError, "by", "'a b' and 'a/b'"):
        make_subsets(tmp_path / "two", tmp_path / "both", ask)
    assert not list(tmp_path.glob("both*"))


def test_partitions(path, tmp_path, capsys):
    """Every document is in one view, or counted."""
    out = str(tmp_path / "web")
    by = "case when quality < 0.5 then 'low' when quality >= 0.5 then 'high' end"
    assert main(["subset", str(path), "--by", by, "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = (selected(Path(f"{out}-{name}")) for name in ("low", "high"))
    quality = [None if one is None else float(np.float32(one)) for one in QUALITY]
    assert low == [k for k, one in enumerate(quality) if one is not None and one < 0.5]
    assert found["without_view"] == COUNT - len(low) - len(high)
    rows = [{"id": f"doc-{k}", "domain": ["law", "code", None][k % 3]} for k in range(COUNT)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "meta.parquet")
    by = "(select domain from t where t.id = documents.id)"
    ask = SubsetOptions(by=by, where="tokens > 5", tables=[f"t={tmp_path}/meta.parquet"])
    make_subsets(path, tmp_path / "by", ask)
    for k, name in enumerate(("law", "code")):
        expected = [n for n in range(k, COUNT, 3) if LENGTH[n] > 5 and n % 11]
        assert selected(tmp_path / f"by-{name}") == expected


def test_lines_of_a_file_of_ids_are_what_they_are(tmp_path):
    """A space at an end is part of an id; a mark at the beginning, and ends of lines as on Windows, are not."""
    rows = [{"id": one, "text": "text"} for one in ("z", "z ", " z", "a\u2028b")]
    write_rows(tmp_path / "in.jsonl", rows)
    cl.build([tmp_path / "in.jsonl"], tmp_path / "data", tokenizer="bytes")
    (tmp_path / "ids").write_bytes("\ufeffz \r\n\r\na\u2028b\n".encode())
    words = ["subset", str(tmp_path / "data"), "--ids", str(tmp_path / "ids"), "--out", str(tmp_path / "view")]
    assert main(words) == 0
    assert ids(str(tmp_path / "view")) == ["z ", "a\u2028b"]


REFUSED = """
qualty > 0.3 | did you mean quality?
tokens > 'many' | Could not convert string 'many'
tokens > 3; drop table documents | expected one SELECT
tokens > | syntax error
tokens > 3) or (true | syntax error
true) from documents where (true | syntax error
id in (select content from read_text('/etc/passwd')) | Permission Error
tokens + 1 | expected true or false
len(concepts, 3) = 4 | No function matches
exists(from metadata) | an unknown column or table 'metadata'
"""


@pytest.mark.parametrize(("where", "problem"), cells(REFUSED))
def test_other_expressions_are_refused(path, tmp_path, where, problem):
    with pytest.raises(ConfigError) as error:
        make_subsets(path, tmp_path / "view", SubsetOptions(where=where))
    assert str(error.value).startswith("where: found ")
    assert problem in str(error.value)
    assert not (tmp_path / "view").exists()


ARGUMENTS = """
--where 'tokens > 1000' | found no document of 233
--by concepts | expected a name of at most 100 letters
--by about | expected a name of at most 100 letters
--by nobody | by: found an unknown column
--spans ''"'"'nobody'"'"' in concepts' | spans: found 'nobody' of the track 'concepts'
--spans ''"'"'law'"'"' in quality' | tracks of concepts: concepts, topics
--spans ''"'"'law'"'"' in concepts and tokens > 3' | spans: found tokens, expected 'NAME' in TRACK
--spans true | spans: found true, expected 'NAME' in TRACK
--where 'tokens > 3 or tokns > 3' | did you mean tokens?
--where ''"'"'nobody'"'"' in concepts' | where: found 'nobody' of the track 'concepts'
--where 'score(concepts, '"'"'law'"'"') > 0.5' | the track 'concepts' without scores
--where 'concepts = '"'"'law'"'"'' | where: found Conversion Error
--where 'id = 7' | Could not convert string 'doc-1'
--where true --table t=/nowhere.parquet | expected a Parquet file
--where true --table documents=a.parquet | expected a name of its own for a file
- | nothing to select by
"""


@pytest.mark.parametrize(("options", "problem"), cells(ARGUMENTS))
def test_arguments_that_mean_nothing(path, tmp_path, options, problem, capsys):
    options = shlex.split(options)
    assert main(["subset", str(path), *options, "--out", str(tmp_path / "view")]) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
