"""The commands adopt and annotate as a user calls them."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.records.tokenizer import load_tokenizer
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import byte_level


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any, str]:
    """(exit code, parsed stdout, stderr)."""
    code = main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


@pytest.mark.parametrize("known", ["--vocab-size", "--tokenizer", "nothing"])
def test_annotate_and_view_with_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str], known: str) -> None:
    """One that is given wins over a size; that which adopt was given is kept beside the manifest,
    and then nobody has to give it again. The documents end with a token that is not the tokenizer's own eos."""
    made, file = byte_level(), tmp_path / "tokenizer.json"
    made.save(str(file))
    texts, comma = ["the red cat sat", "größer als die Katze"], made.token_to_id(",")
    ids = [[*made.encode(text).ids, comma] for text in texts]
    (tmp_path / "web.ds").write_bytes(np.concatenate(ids).astype("<u2").tobytes())
    (tmp_path / "web.ds.index").write_bytes(np.cumsum([len(one) for one in ids]).astype("<u8").tobytes())
    (tmp_path / "web.ds.metadata").write_text(f"mine|2\n{sum(map(len, ids))}\n1 shard\n")
    named: dict[str, tuple[object, ...]] = {
        "--vocab-size": (known, made.get_vocab_size(), "--eos", comma),
        "--tokenizer": (known, file, "--eos", ",", "--allow-mixed-tokenizers"),
        "nothing": (),
    }
    words = ("adopt", tmp_path / "web.ds", "--out", tmp_path / "ds", *named[known])
    assert run(capsys, *words)[0] == 0
    rows = [
        {"document": 0, "start": 8, "end": 11, "concepts": ["cat"]},
        {"document": 1, "start": 15, "end": 20, "concepts": ["cat"]},
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "names.txt").write_text("cat\n")
    given = () if known == "--tokenizer" else ("--tokenizer", file)
    words = (
        "annotate",
        tmp_path / "ds",
        tmp_path / "rows.jsonl",
        "--out",
        tmp_path / "out",
        "--span-unit",
        "character",
    )
    words += ("--track", "c", "--vocabulary", tmp_path / "names.txt")
    code, value, err = run(capsys, *words, *given)
    assert (code, value.get("records")) == (0, 2), err
    for path in ("ds", "out"):
        code, value, err = run(capsys, "inspect", tmp_path / path, "--document-number", 1, *given)
        assert code == 0, err
        assert value["samples"][0]["text"].startswith(texts[1])
    with cl.open_dataset(tmp_path / "out") as ds:
        assert [made.decode(ds.tokens(*span)).strip() for span in _spans(ds)] == ["cat", "Katze"]
        assert ds.tokenizer is None or given or ds.tokenizer.name == load_tokenizer(str(file)).name
        assert texts[0] in html.unescape(
            re.sub("<.*?>", "", str(ds.documents().show(tokenizer=str(file) if given else None)))
        )
    assert run(capsys, "verify", tmp_path / "ds", "--full")[0] == 0


def _spans(ds: cl.Dataset) -> list[tuple[int, int]]:
    found = ds.spans("c", 0, ds.num_tokens)
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


def test_another_tokenizer_than_the_one_that_the_manifest_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokenizer.json"
    byte_level().save(str(file))
    np.array([1, 2, 0, 3, 0], np.uint16).tofile(tmp_path / "x.bin")
    flat = ("--dtype", "uint16", "--document-end", 0)
    for own, other in ((file, "bytes"), ("bytes", file)):
        out = tmp_path / f"of-{Path(own).name}"
        assert run(capsys, "adopt", tmp_path / "x.bin", "--out", out, *flat, "--tokenizer", own)[0] == 0
        code, _, err = run(capsys, "inspect", out, "--document-number", 0, "--tokenizer", other)
        assert code == 2
        assert "expected that of" in err
