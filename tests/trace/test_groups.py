"""exposure --by source,COLUMN: a table of what a run has seen, for a summary of its training content."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets: `web` has metadata with its documents, `code` has none; both have a license in a file."""
    folder = tmp_path_factory.mktemp("groups")
    rows = [
        {"id": f"web-{k}", "text": "x" * (10 + k), "meta": {"domain": ["news", "wiki", None, 7][k % 4], "tags": [k]},
         "topic": [{"start": 0, "end": 5, "concepts": [f"topic-{k % 3}"]}] * (k % 5 > 0),
         "spans": [{"start": 0, "end": 5, "concepts": ["topic-0", "topic-1"]}]}
        for k in range(40)
    ]  # fmt: skip
    topics = [f"topic-{k}" for k in range(3)]
    names = {"topic": topics, "concepts": topics}
    (folder / "web.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "code.jsonl").write_text("\n".join(json.dumps({"id": f"code-{k}", "text": "y" * 30}) for k in range(20)))
    cl.build(folder / "web.jsonl", folder / "web", tokenizer="bytes", vocabularies=names,
             columns=cl.writing.Columns(metadata="meta", tracks={"topic": "topic", "concepts": "spans"}))  # fmt: skip
    cl.build(folder / "code.jsonl", folder / "code", tokenizer="bytes")
    licenses = [{"name": f"{name}-{k}", "license": "MIT" if k % 2 else None, "year": 2000 + k % 3}
                for name, count in (("web", 40), ("code", 19)) for k in range(count)]  # fmt: skip
    (folder / "licenses.jsonl").write_text("\n".join(map(json.dumps, licenses)))
    (folder / "other.jsonl").write_text('{"id": "nobody", "license": "MIT"}')
    datasets = {name: {"path": name, "weight": 1} for name in ("web", "code")}
    (folder / "run.yaml").write_text(yaml.safe_dump({"seq_len": 16, "datasets": datasets}))
    return folder


def ask(folder: Path, capsys: pytest.CaptureFixture[str], by: str, *more: str) -> list[dict[str, Any]]:
    assert main(["exposure", str(folder / "run.yaml"), "--samples", "100", "--by", by, *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]  # type: ignore[no-any-return]


def test_rows_sum_to_the_totals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals = ask(folder, capsys, "source")
    documents = ask(folder, capsys, "document")
    more = ("--metadata", str(folder / "licenses.jsonl"), "--on", "name")
    for by in ("source,metadata.domain", "metadata.domain,license,year", "year,source"):
        rows = ask(folder, capsys, by, *(more if "year" in by else ()))
        for what in ("samples", "tokens", "size"):
            assert sum(row[what] for row in rows) == sum(row[what] for row in totals)
        assert all(row["epochs"] == (row["tokens"] / row["size"] if row["size"] else 0) for row in rows)
    rows = ask(folder, capsys, "source,metadata.domain")
    found = {(row["dataset"], row["metadata.domain"]): row for row in rows}
    assert set(found) == {("web", "news"), ("web", "wiki"), ("web", "7"), ("web", None), ("code", None)}
    for k, domain in enumerate(["news", "wiki", None, "7"]):
        seen = [row["seen"] for row in documents if row["dataset"] == "web" and int(row["id"][4:]) % 4 == k]
        assert (found["web", domain]["documents"], found["web", domain]["tokens"]) == (sum(map(bool, seen)), sum(seen))
    rows = ask(folder, capsys, "source,topic")
    assert {row["topic"] for row in rows} == {"topic-0", "topic-1", "topic-2", None}
    by_number = {row["document"]: row["seen"] for row in documents if row["dataset"] == "web"}
    expected = sum(seen for k, seen in by_number.items() if k % 3 == 1 and k % 5)
    assert next(row for row in rows if row["topic"] == "topic-1")["tokens"] == expected
    rows = ask(folder, capsys, "license,year,source", *more)
    assert {type(row["year"]) for row in rows} == {int, type(None)}  # as it is in the file; code-19 is not
    assert next(row for row in rows if row["year"] is None)["documents"] == 1


def test_in_other_forms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["exposure", str(folder / "run.yaml"), "--samples", "100", "--by", "source,metadata.domain"]
    assert main(words) == 0
    assert capsys.readouterr().out.split("\n")[0].split() == [
        "dataset", "metadata.domain", "documents", "samples", "tokens", "size", "epochs",
    ]  # fmt: skip
    assert main([*words, "--format", "parquet", "--out", str(folder / "seen.parquet")]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "source,licence"], "'licence'"),
        (["--by", "metadata.tags,source,source"], "each column once"),
        (["--by", "source,concepts"], "'topic-0, topic-1' in a document"),
        (["--by", "tokens"], "none called documents, samples, tokens"),
        (["--by", "source", "--metadata", "{folder}/licenses.jsonl"], "--by source and --metadata"),
        (["--by", "license", "--metadata", "{folder}/licenses.jsonl"], "a column id"),
        (["--by", "license", "--metadata", "{folder}/other.jsonl"], "none of its 1 ids"),
        (["--by", "source,id", "--on", "name"], "--on without --metadata"),
        (["--by", "source,id", "--documents", "{folder}/ids"], "found with --by source,id, expected --by document"),
    ],
)
def test_usage_errors(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    words = [word.format(folder=folder) for word in words]
    assert main(["exposure", str(folder / "run.yaml"), "--samples", "9", *words]) == 2
    assert message in capsys.readouterr().err
