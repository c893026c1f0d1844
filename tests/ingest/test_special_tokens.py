"""Text that spells a special token: as text, as that token, or refused; counted by name."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.records.batch import BadRow
from conceptloader.ingest.records.special_tokens import RULES, SpecialTokens
from conceptloader.ingest.records.tokenizer import FileTokenizer, load_tokenizer
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import END, FAMILIES, byte_level, definition
from tests.raises import raises

PLAIN = ["the red cat", "größer 😀", "", "a < b | c"]
SPELLED = f"a {END}b"


def with_marks() -> Tokenizer:
    made = byte_level()
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rule", RULES)
def test_text_without_such_names_is_cut_as_ever(family: str, rule: str) -> None:
    tokenizer = FileTokenizer(definition(family), family, END)
    texts = [text for text in PLAIN if family != "unigram without bytes" or text.isascii()]
    wanted, places = tokenizer.encode(texts, [True] * len(texts))
    using = SpecialTokens(tokenizer, rule)
    found, found_places = using.encode(texts, [True] * len(texts))
    assert found.values.tolist() == wanted.values.tolist()
    assert found.offsets.tolist() == wanted.offsets.tolist()
    assert found_places.tolist() == places.tolist()
    assert not using.spelled


@pytest.mark.parametrize("family", FAMILIES)
def test_names_by_each_rule(family: str) -> None:
    made = FAMILIES[family]()
    made.add_special_tokens([END])
    tokenizer = FileTokenizer(made.to_str().encode(), family, END)
    texts = ["red", SPELLED, "the"]
    control = SpecialTokens(tokenizer, "control")
    tokens, places = control.encode(texts, [True] * 3)
    wanted, wanted_places = tokenizer.encode(texts, [True] * 3)
    assert (tokens.values.tolist(), places.tolist()) == (wanted.values.tolist(), wanted_places.tolist())
    assert control.spelled == {END: 1}
    with pytest.raises(BadRow, match=r"special token '<\|endoftext\|>' in text") as caught:
        SpecialTokens(tokenizer, "error").encode(texts, [True] * 3)
    assert caught.value.row == 1
    plain = SpecialTokens(tokenizer, "text")
    if "unigram" in family:  # it has the name as a piece of text, too
        with pytest.raises(BadRow, match="cannot cut as text"):
            plain.encode(texts, [True] * 3)
        return
    tokens, places = plain.encode(texts, [True] * 3)
    assert tokenizer.eos_id not in tokens.values.tolist()
    assert plain.spelled == {END: 1}
    for row, text in enumerate(texts):
        part = slice(*tokens.offsets[row : row + 2])
        assert tokens.values[part].tolist() == tokenizer.encode([text], [False], plain=True)[0].values.tolist()
        assert places[part].tolist() == tokenizer.encode([text], [True], plain=True)[1].tolist()


def test_unknown_characters_are_no_names() -> None:
    made = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "<": 2, "unk": 3, ">": 4}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Punctuation()
    made.add_special_tokens(["<unk>"])
    using = SpecialTokens(FileTokenizer(made.to_str().encode(), "t", None), "text")
    assert using.encode(["a", "日"], [False] * 2)[0].values.tolist() == [0, 1]
    assert not using.spelled
    assert using.encode(["日<unk>"], [False])[0].values.tolist() == [1, 2, 3, 4]
    assert using.spelled == {"<unk>": 1}


def build(tmp_path: Path, rows: list[dict[str, Any]], out: str, **options: Any) -> tuple[Any, list[list[int]]]:
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())
    write_rows(tmp_path / "in.jsonl", rows)
    given = {"tokenizer": str(tmp_path / "tokenizer.json"), "eos": END, **options}
    summary = cl.build(tmp_path / "in.jsonl", tmp_path / out, **given)
    with cl.open_dataset(tmp_path / out) as ds:
        return summary, [ds.tokens(*ds.document_range(k)).tolist() for k in range(ds.num_documents)]


def test_builds_count_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "text": "the <|im_end|> cat"}, {"id": "b", "text": f"x{END}<|im_end|>"}]
    counts = {END: 1, "<|im_end|>": 2}
    made, marks = with_marks(), {with_marks().token_to_id(name) for name in counts}
    summary, documents = build(tmp_path, rows, "text")
    assert summary.special_tokens == counts
    assert not marks & {token for document in documents for token in document[:-1]}
    summary, documents = build(tmp_path, rows, "control", special_tokens="control")
    assert summary.special_tokens == counts
    assert [made.encode(row["text"]).ids for row in rows] == [document[:-1] for document in documents]
    with pytest.raises(InputError, match=r"line 1: found the special token '<\|im_end\|>' in text"):
        build(tmp_path, rows, "error", special_tokens="error")
    with raises(ConfigError, "special_tokens", "'none'", "one of text, control, error"):
        build(tmp_path, rows, "none", special_tokens="none")
    words = ["build", str(tmp_path / "in.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json"), "--eos", END]
    words += ["--workers", "2", "--out", str(tmp_path / "said")]
    assert main(words) == 0
    said = "special tokens that text spells, kept as text (--special-tokens): <|endoftext|> (1), <|im_end|> (2)"
    assert said in capsys.readouterr().out
    assert main([*words, "--special-tokens", "control"]) == 2  # another dataset
    assert "continue with --special-tokens text" in capsys.readouterr().err
    assert main(words) == 0
    assert said in capsys.readouterr().out


def test_another_rule_begins_the_build_that_takes_the_place_again(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "the <|im_end|> cat"}, {"id": "b", "text": 7}]
    build(tmp_path, rows[:1], "out")
    write_rows(tmp_path / "in.jsonl", rows)
    words = ["build", str(tmp_path / "in.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json"), "--eos", END]
    words += ["--workers", "1", "--out", str(tmp_path / "out"), "--overwrite", "--shard-input-bytes", "30"]
    assert main(words) == 1  # the second shard; the first one is kept next to the dataset
    bad = ["--bad-records", str(tmp_path / "bad.jsonl")]
    assert main([*words, *bad, "--special-tokens", "control"]) == 0
    with cl.open_dataset(tmp_path / "out") as ds:
        assert with_marks().token_to_id("<|im_end|>") in ds.tokens(0, ds.num_tokens).tolist()


@pytest.mark.parametrize("rule", ["text", "control"])
def test_spans_and_annotations_of_such_text(tmp_path: Path, rule: str) -> None:
    text = "the <|im_end|> cat"
    span = {"start": text.index("cat"), "end": len(text), "concepts": [1]}
    build(tmp_path, [{"id": "a", "text": text, "spans": [span]}], "out", special_tokens=rule)
    (tmp_path / "more.jsonl").write_text(json.dumps({"id": "a", "spans": [span]}) + "\n")
    annotate(tmp_path / "out", [str(tmp_path / "more.jsonl")], tmp_path / "more", AnnotateOptions(track="more"))
    with cl.open_dataset(tmp_path / "more") as ds:
        found = [ds.spans(track, 0, ds.num_tokens) for track in ("concepts", "more")]
        places = [(spans.start.tolist(), spans.end.tolist()) for spans in found]
        assert places[0] == places[1]
        tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), END)
        assert tokenizer.decode(ds.tokens(places[0][0][0], places[0][1][0]).tolist()).strip() == "cat"


def test_a_second_eos_or_bos_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"tokens": [3, 5 + k, 0]}) + "\n" for k in range(40)))
    words = ["build", str(tmp_path / "in.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json"), "--workers", "1"]
    out = ["--out", str(tmp_path / "out")]
    assert main([*words, *out]) == 1
    said = capsys.readouterr().err
    assert "found 40 of the first 40 documents, which end with the eos already, token 0" in said
    assert "append none (--no-eos), or name it to have a second one (--eos)" in said
    assert main([*words, *out, "--no-eos"]) == 0
    assert main([*words, "--out", str(tmp_path / "both"), "--eos", END]) == 0
    assert "40 documents had the eos or bos that is added" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "bos"), "--no-eos", "--bos", "3"]) == 1
    assert "begin with the bos already" in capsys.readouterr().err
    bare = ["build", str(tmp_path / "in.jsonl"), "--vocab-size", "99", "--workers", "1"]
    assert main([*bare, "--out", str(tmp_path / "named"), "--eos", "0", "--no-eos"]) == 0
    with cl.open_dataset(tmp_path / "named") as ds:
        assert ds.tokenizer is not None
        assert ds.tokenizer.eos_id == 0
        assert ds.tokens(0, 3).tolist() == [3, 5, 0]
    (tmp_path / "in.jsonl").write_text('{"tokens": [3, 4]}\n{"tokens": [3, 0]}\n')
    assert main([*words, "--out", str(tmp_path / "few"), "--overwrite"]) == 0
    assert "1 document had the eos" in capsys.readouterr().out


def test_the_first_documents_are_judged_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not each block of them alone, and not each place of a trial; the bos whatever is said of the eos."""
    (tmp_path / "tokenizer.json").write_text(with_marks().to_str())

    def command(name: str, ends: list[int], *more: str) -> int:
        table = pa.table({"tokens": [[3, 5, end] for end in ends]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        words = ["build", str(tmp_path / f"{name}.parquet"), "--tokenizer", str(tmp_path / "tokenizer.json")]
        return main([*words, "--workers", "1", "--out", str(tmp_path / name), *more])

    few = [0, 0, *[6] * 18, 0, 0]  # two blocks of such documents
    assert command("few", few, "--dry-run") == 0
    assert command("few", few) == 0
    capsys.readouterr()
    for more in ([], ["--dry-run"]):
        assert command("most", [6, *[0] * 9], *more) == 1
        assert "9 of the first 10 documents, which end with the eos already" in capsys.readouterr().err
    assert command("bos", few, "--eos", END, "--bos", "3") == 1
    assert "22 of the first 22 documents, which begin with the bos already" in capsys.readouterr().err


def test_text_that_spells_none_is_the_same_dataset_by_all_rules(tmp_path: Path) -> None:
    """With the bytes of earlier releases, which knew no rule; the same command finds it complete."""
    rows = [{"id": "a", "text": "the red cat"}]
    build(tmp_path, rows, "out")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert not any(b"special_tokens" in content for name, content in files.items() if name != "tokenizer.json")
    given: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer.json"), "eos": END, "special_tokens": "control"}
    assert cl.build(tmp_path / "in.jsonl", tmp_path / "out", **given).kept_shards == 1
    cl.build(tmp_path / "in.jsonl", tmp_path / "control", **given)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "control").iterdir()}


def test_tokens_as_input_have_no_text(tmp_path: Path) -> None:
    with raises(ConfigError, "special_tokens", "'control' for tokens as input"):
        build(tmp_path, [{"tokens": [1]}], "out", special_tokens="control")


FRAMED = {"eos": f"the red cat{END}", "eos and a line feed": f"the red cat{END}\n", "bos": "<|im_start|>the red cat"}


@pytest.mark.parametrize("kind", FRAMED)
@pytest.mark.parametrize("append_eos", [True, False])
def test_documents_that_end_with_a_special_token_as_text_need_a_choice(
    kind: str, append_eos: bool, tmp_path: Path
) -> None:
    rows = [{"text": FRAMED[kind]}] * 6
    with pytest.raises(InputError, match="6 of the first 6 documents, which begin or end"):
        build(tmp_path, rows, "asked", no_eos=not append_eos)
    for rule, there in (("text", False), ("control", True)):
        more = {} if append_eos and rule == "control" else {"eos": END}
        _, documents = build(tmp_path, rows, rule, special_tokens=rule, no_eos=not append_eos, **more)
        number = with_marks().token_to_id(END if kind.startswith("eos") else "<|im_start|>")
        assert (number in (documents[0][:-1] if append_eos else documents[0])) == there
    build(tmp_path, rows[:2] + [{"text": "red"}] * 4, "few", no_eos=not append_eos)
