"""Folders that transformers saved, or older versions of it: the ids are those of AutoTokenizer, or nothing is built."""

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.kept import own_name
from conceptloader.ingest.records import tokenizer_folder
from conceptloader.ingest.records.tokenizer import FileTokenizer, kept_tokenizer, load_tokenizer
from tests.corpora.tokenizers import END, FAMILIES, byte_level
from tests.raises import raises

transformers = pytest.importorskip("transformers")

TOOL = "<|tool|>"
TEXTS = ["the red cat", f"a{TOOL}b {END} x", " cafe\u0301  \n\tend 123", f"{TOOL}red"]


@pytest.fixture(autouse=True)
def _compared_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own would import transformers each time. One test here has that, and test_chat.py."""

    def run(_command: list[str], *, input: str, **_options: Any) -> SimpleNamespace:
        with monkeypatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.setattr(tokenizer_folder, "sys", SimpleNamespace(stdin=StringIO(input), modules={}))
            tokenizer_folder.difference()
        return SimpleNamespace(returncode=0, stdout=out.getvalue())

    if "another_eos" not in request.node.name:
        monkeypatch.setattr(tokenizer_folder.subprocess, "run", run)


FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def saved(folder: Path, made: Tokenizer, kind: str = "PreTrainedTokenizerFast", **given: Any) -> Path:
    """As transformers saves it."""
    fast = getattr(transformers, kind)(tokenizer_object=made, **{"eos_token": END, **given})
    fast.save_pretrained(folder)
    return folder


def older(folder: Path, **files: Any) -> Path:
    """A folder as earlier versions wrote it: further keys of tokenizer_config.json, and further files."""
    saved(folder, byte_level())
    config = folder / "tokenizer_config.json"
    more = {name: value for name, value in files.items() if "__" not in name}
    config.write_text(json.dumps({**json.loads(config.read_text()), **more}))
    for name in files.keys() - more.keys():
        (folder / name.replace("__", ".")).write_text(json.dumps(files[name]))
    return folder


def ours(folder: Path) -> list[list[int]]:
    found = load_tokenizer(str(folder))
    return [found.encode([text], [False])[0].values.tolist() for text in TEXTS]


def theirs(folder: Path) -> list[list[int]]:
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    return [fast(text, add_special_tokens=False)["input_ids"] for text in TEXTS]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["byte-level, template", "byte-level, NFC", "unigram, first", "llama", "word piece"])
def test_folders_that_it_saved(tmp_path: Path, family: str) -> None:
    made = FAMILIES[family]()
    before = own_name((saved(tmp_path / "plain", made) / "tokenizer.json").read_bytes())
    assert load_tokenizer(str(tmp_path / "plain")).name == before  # nothing is merged: the name that it always had
    more = saved(tmp_path / "more", made, extra_special_tokens=[TOOL], bos_token="<s>", pad_token="[PAD]")
    assert ours(more) == theirs(more)


NEXT = 354  # the id that a token added to `byte_level` gets

MERGED: dict[str, Callable[[Path], Path]] = {
    "added_tokens.json": lambda path: older(path, added_tokens__json={TOOL: NEXT}),
    "added_tokens_decoder": lambda path: older(path, added_tokens_decoder={str(NEXT): {"content": TOOL, **FLAGS}}),
    "other flags": lambda path: older(path, added_tokens_decoder={"0": {"content": END, **FLAGS, "lstrip": True}}),
    "extra_special_tokens": lambda path: older(path, extra_special_tokens=[TOOL]),
    "named extra_special_tokens": lambda path: older(path, extra_special_tokens={"tool_token": TOOL}),
    "additional_special_tokens": lambda path: older(path, additional_special_tokens=[TOOL]),
    "special_tokens_map.json": lambda path: older(path, special_tokens_map__json={"pad_token": TOOL}),
    "pad_token": lambda path: older(path, pad_token={"content": TOOL, **FLAGS, "__type": "AddedToken"}),
    "a token of the vocabulary": lambda path: older(path, unk_token="Ġthe"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MERGED)
def test_what_the_files_next_to_tokenizer_json_add(tmp_path: Path, case: str) -> None:
    folder = MERGED[case](tmp_path / "model")
    assert ours(folder) == theirs(folder)


def test_a_build_keeps_the_tokenizer_that_it_used(tmp_path: Path) -> None:
    folder = older(tmp_path / "model", added_tokens__json={TOOL: NEXT})
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "a", "text": f"red{TOOL}cat"}) + "\n")
    words = ["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"), "--tokenizer", str(folder)]
    assert main([*words, "--workers", "1"]) == 0
    with cl.open_dataset(tmp_path / "out") as ds:
        kept = kept_tokenizer(ds)
        assert NEXT in ds.tokens(0, ds.num_tokens).tolist()
        assert kept is not None
        assert ds.tokenizer is not None
        assert kept.name == ds.tokenizer.name == load_tokenizer(str(folder)).name
        assert kept.decode([NEXT]) == TOOL
        assert ds.tokenizer.vocab_size == NEXT + 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an id that it cannot have": ({"added_tokens__json": {TOOL: NEXT + 7}}, TOOL),
    "a class that puts a space in front": ({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, "AutoToken"),
    "a class that normalizes": ({"tokenizer_class": "Qwen2Tokenizer"}, "cafe\u0301"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_ids_than_those_of_transformers_are_refused(tmp_path: Path, case: str) -> None:
    files, said = REFUSED[case]
    folder = older(tmp_path / "model", **files)
    with raises(InputError, "tokenizer" if "id" not in case else "model", fix="save_pretrained") as caught:
        load_tokenizer(str(folder))
    assert said in str(caught.value)
    again = tmp_path / "again"
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(again)  # what the message recommends
    assert ours(again) == theirs(again)
    assert load_tokenizer(str(folder / "tokenizer.json"), END).eos_id == 0


def test_another_eos_than_that_of_transformers_is_refused(tmp_path: Path) -> None:
    made = byte_level()
    made.add_special_tokens(["</s>"])
    folder = saved(tmp_path / "model", made)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    with raises(ConfigError, fix="--eos"):
        load_tokenizer(str(folder))
    assert load_tokenizer(str(folder), ends=False).eos_id is None
    assert load_tokenizer(str(folder), "</s>").eos_id == made.token_to_id("</s>")


def test_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokenizer_folder, "find_spec", lambda name: None)
    folder = older(tmp_path / "model", extra_special_tokens=[TOOL])
    assert load_tokenizer(str(folder)).encode([f"a{TOOL}"], [False])[0].values.tolist()[1:] == [NEXT]
    assert not caplog.records
    load_tokenizer(str(older(tmp_path / "qwen", tokenizer_class="Qwen2Tokenizer")))
    assert "its class Qwen2Tokenizer may read it differently" in caplog.text
    with raises(InputError, "tokenizer", "add_prefix_space True", fix="pip install transformers"):
        load_tokenizer(str(older(tmp_path / "space", add_prefix_space=True)))


def test_a_folder_that_it_cannot_load_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = older(tmp_path / "model", auto_map={"AutoTokenizer": ["mine.Mine", None]}, tokenizer_class="Mine")
    load_tokenizer(str(folder))
    assert "not compared with transformers, which cannot load it" in caplog.text


@pytest.mark.parametrize("decoder", [{"x": {"content": TOOL}}, [TOOL], {"1": 5}, {"1": {}}])
def test_added_tokens_that_cannot_be_read(tmp_path: Path, decoder: Any) -> None:
    with raises(InputError, "model"):
        load_tokenizer(str(older(tmp_path / "model", added_tokens_decoder=decoder)))


def test_a_file_next_to_which_others_say_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = older(tmp_path / "model", extra_special_tokens=[TOOL])
    load_tokenizer(str(folder / "tokenizer.json"))
    assert "files next to it say more of its tokens" in caplog.text


def test_dropout_is_off_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bos_token": "<s>", "add_bos_token": True}, "would begin each text with <s>, a build does not (--bos <s>)"),
        ({"cls_token": "<s>"}, None),
    ],
)
def test_what_the_tokenizer_would_put_around_a_text_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: str | None
) -> None:
    made = byte_level()
    made.add_special_tokens([AddedToken("<s>", special=True)])
    folder = saved(tmp_path / "model", made, **given)
    (tmp_path / "in.jsonl").write_text('{"text": "red"}\n')
    cl.build(tmp_path / "in.jsonl", tmp_path / "out", tokenizer=str(folder))
    assert (said or "nothing") in (caplog.text or "nothing")
    caplog.clear()
    cl.build(tmp_path / "in.jsonl", tmp_path / "with", tokenizer=str(folder), bos="<s>")
    assert "begin each text" not in caplog.text


def test_an_eos_that_is_guessed_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "model", byte_level(), eos_token=None)
    (tmp_path / "in.jsonl").write_text('{"text": "red"}\n')
    said = f"names no eos: {END} is taken for it"
    words = ["build", str(tmp_path / "in.jsonl"), "--tokenizer", str(folder), "--out"]
    for more in ([], ["--no-eos"]):
        caplog.clear()
        assert main([*words, str(tmp_path / f"out{len(more)}"), *more]) == 0
        assert said in capsys.readouterr().out
        assert said in caplog.text
    caplog.clear()
    assert main([*words, str(tmp_path / "named"), "--eos", END]) == 0
    assert said not in capsys.readouterr().out + caplog.text
    summary = cl.build(tmp_path / "in.jsonl", tmp_path / "file", tokenizer=str(folder / "tokenizer.json"))
    assert summary.guessed_eos == END


@pytest.mark.parametrize("role", ["pad_token", "bos_token", "unk_token"])
def test_a_guess_with_another_use_is_none(tmp_path: Path, role: str) -> None:
    folder = saved(tmp_path / "model", byte_level(), **{"eos_token": None, role: END})
    with raises(ConfigError, "eos", f"which is the {role}", fix="pass --eos TOKEN"):
        load_tokenizer(str(folder))
    assert load_tokenizer(str(folder), ends=False).eos_id is None
    assert load_tokenizer(str(folder), END).eos_id == 0


@pytest.mark.parametrize("names", [[], ["a.jsonl", "readme.txt"]])
def test_a_folder_of_other_things(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with raises(
        ConfigError,
        f"tokenizer {tmp_path}",
        "a folder without a tokenizer",
        fix="pass the folder or file of a tokenizer",
    ):
        load_tokenizer(str(tmp_path))
