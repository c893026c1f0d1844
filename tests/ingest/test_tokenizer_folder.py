"""Folders that transformers saved, or older versions of it: the ids are those of AutoTokenizer, or nothing is built."""

import json
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest

from conceptloader.errors import InputError
from conceptloader.format.read.kept import own_name
from conceptloader.ingest.records import tokenizer_folder
from conceptloader.ingest.records.tokenizer import FileTokenizer, load_tokenizer
from tests.corpora.tokenizers import END, FAMILIES, byte_level
from tests.raises import cells, raises

transformers = pytest.importorskip("transformers")

TOOL = "<|tool|>"
TEXTS = ["the red cat", f"a{TOOL}b {END} x", " cafe\u0301  \n\tend 123", f"{TOOL}red"]


@pytest.fixture(autouse=True)
def _compared_here(monkeypatch):
    """A process of its own would import transformers each time; test_chat.py has that."""

    def run(_command, *, input, **_options):
        with monkeypatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.setattr(tokenizer_folder, "sys", SimpleNamespace(stdin=StringIO(input), modules={}))
            tokenizer_folder.difference()
        return SimpleNamespace(returncode=0, stdout=out.getvalue())

    monkeypatch.setattr(tokenizer_folder.subprocess, "run", run)


def saved(folder, made, kind="PreTrainedTokenizerFast", **given):
    """As transformers saves it."""
    fast = getattr(transformers, kind)(tokenizer_object=made, **{"eos_token": END, **given})
    fast.save_pretrained(folder)
    return folder


def older(folder, **files):
    """A folder as earlier versions wrote it: further keys of tokenizer_config.json, and further files."""
    saved(folder, byte_level())
    config = folder / "tokenizer_config.json"
    more = {name: value for name, value in files.items() if "__" not in name}
    config.write_text(json.dumps({**json.loads(config.read_text()), **more}))
    for name in files.keys() - more.keys():
        (folder / name.replace("__", ".")).write_text(json.dumps(files[name]))
    return folder


def ours(folder):
    found = load_tokenizer(str(folder))
    return [found.encode([text], [False])[0].values.tolist() for text in TEXTS]


def theirs(folder):
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    return [fast(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["byte-level, template", "byte-level, NFC", "unigram, first", "llama", "word piece"])
def test_folders_that_it_saved(tmp_path, family):
    made = FAMILIES[family]()
    before = own_name((saved(tmp_path / "plain", made) / "tokenizer.json").read_bytes())
    assert load_tokenizer(str(tmp_path / "plain")).name == before  # nothing is merged: the name that it always had
    more = saved(tmp_path / "more", made, extra_special_tokens=[TOOL], bos_token="<s>", pad_token="[PAD]")
    assert ours(more) == theirs(more)  # they are in its tokenizer.json


# 354: the id that a token added to `byte_level` gets.
REFUSED = """
{"added_tokens__json": {"<|tool|>": 354}} | <|tool|>
{"added_tokens_decoder": {"354": {"content": "<|tool|>", FLAGS}}} | <|tool|>
{"added_tokens_decoder": {"7": {"content": "<|endoftext|>", FLAGS}}} | <|endoftext|>
{"added_tokens_decoder": {"0": {"content": "<|endoftext|>", FLAGS, "lstrip": true}}} | lstrip
{"extra_special_tokens": ["<|tool|>"]} | <|tool|>
{"extra_special_tokens": {"tool_token": "<|tool|>"}} | <|tool|>
{"special_tokens_map__json": {"pad_token": "<|tool|>"}} | <|tool|>
{"pad_token": {"content": "<|tool|>", FLAGS, "__type": "AddedToken"}} | <|tool|>
{"unk_token": "Ġthe"} | Ġthe
{"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": true} | AutoToken
{"tokenizer_class": "Qwen2Tokenizer"} | cafe\u0301
"""
FLAGS = '"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true'


@pytest.mark.slow
@pytest.mark.parametrize(("files", "said"), cells(REFUSED))
def test_a_folder_that_differs_from_its_tokenizer_json_is_refused(tmp_path, files, said):
    """Nothing is merged; the folder that the message recommends is as transformers has it."""
    folder = older(tmp_path / "model", **json.loads(files.replace("FLAGS", FLAGS)))
    with raises(InputError, "tokenizer", fix="save_pretrained") as caught:
        load_tokenizer(str(folder))
    assert said in str(caught.value)
    again = tmp_path / "again"
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(again)  # what the message recommends
    assert ours(again) == theirs(again)
    assert load_tokenizer(str(folder / "tokenizer.json"), END).eos_id == 0


def test_without_transformers(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tokenizer_folder, "find_spec", lambda name: None)
    load_tokenizer(str(older(tmp_path / "model")))
    assert not caplog.records
    load_tokenizer(str(older(tmp_path / "qwen", tokenizer_class="Qwen2Tokenizer")))
    assert "its class Qwen2Tokenizer may give other ids" in caplog.text


def test_a_folder_that_it_cannot_load_is_said(tmp_path, caplog):
    folder = older(tmp_path / "model", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine")
    load_tokenizer(str(folder))
    assert "not compared with transformers, which cannot load it" in caplog.text


def test_dropout_is_off_and_said(tmp_path, caplog):
    found = json.loads(byte_level().to_str())
    found["model"]["dropout"] = 0.5
    (tmp_path / "drop.json").write_text(json.dumps(found))
    made = load_tokenizer(str(tmp_path / "drop.json"))
    assert "dropout 0.5 is switched off" in caplog.text
    plain = FileTokenizer(byte_level().to_str().encode(), "plain", None)
    kept = FileTokenizer((tmp_path / "drop.json").read_bytes(), "of an older build", None)
    for text in TEXTS * 5:
        wanted = plain.encode([text], [False])[0].values.tolist()
        assert made.encode([text], [False])[0].values.tolist() == wanted
        assert kept.encode([text], [False])[0].values.tolist() == wanted
    assert b'"dropout":null' in (made.definition or b"")
