"""What fields of messages say: which are not trained on, and which of them a chat template leaves out."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.records.chat import CHAT_COLUMNS, ChatParser, ChatRules
from conceptloader.ingest.records.special_tokens import SpecialTokens
from conceptloader.ingest.records.tokenizer import FileTokenizer, kept_tokenizer
from tests.ingest.test_chat import CHATML, MARKED, model, write

BAD, GOOD = {"role": "assistant", "content": "bad"}, {"role": "assistant", "content": "good"}
USER = {"role": "user", "content": "q"}


def learnt(path: Path) -> list[str]:
    """What is trained on, by document."""
    with cl.open_dataset(path) as ds:
        tokenizer, found = kept_tokenizer(ds), []
        assert isinstance(tokenizer, FileTokenizer)
        for number in range(ds.num_documents):
            read = ds.read(*ds.document_range(number))
            found.append(tokenizer.decode(read["tokens"][read["loss_mask"] == 1].tolist()))
    return found


def command(tmp_path: Path, *rows: Any, template: str = CHATML) -> list[str]:
    """Of a build, by a tokenizer.json, which is not compared with transformers."""
    (tmp_path / "template").write_text(template)
    tokenizer = model(tmp_path) / "tokenizer.json"
    words = [write(tmp_path / "in.jsonl", *rows), "--out", tmp_path / "out", "--overwrite", "--tokenizer", tokenizer]
    return ["build", *map(str, words), "--eos", "<|im_end|>", "--chat", "--chat-template", str(tmp_path / "template")]


def build(tmp_path: Path, capsys: pytest.CaptureFixture[str], *rows: Any, more: Any = (), **given: Any) -> Any:
    words = command(tmp_path, *rows, **given)
    capsys.readouterr()
    code = main([*words, "--json", "--workers", "1", *more])
    said = capsys.readouterr()
    return json.loads(said.out) if code == 0 else said.err


@pytest.mark.parametrize("template", [CHATML, MARKED])
@pytest.mark.parametrize("flag", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}])
def test_what_is_not_to_be_trained_is_masked(
    flag: Any, template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on = {name: type(value)(1) for name, value in flag.items()}
    talk = [{**USER, **flag}, {**BAD, **flag}, USER, {**GOOD, **on}, USER, GOOD]
    pair = {"prompt": talk[:3], "chosen": talk[3:4], "rejected": talk[3:4]}
    build(tmp_path, capsys, {"messages": talk}, pair, {"prompt": talk[:5], "completion": talk[5:]}, template=template)
    end = "<|im_end|>\n"
    assert learnt(tmp_path / "out") == [f"good{end}" * 2, f"good{end}", f"good{end}", f"good{end}"]


def test_a_template_gets_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = MARKED.replace("{{ m.content }}", "{{ m.content }}{{ m.weight }}", 1)
    build(tmp_path, capsys, {"messages": [USER, {**GOOD, "weight": 1}]}, template=shown)
    assert learnt(tmp_path / "out") == ["good1<|im_end|>\n"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({**GOOD, "loss": 0}, "messages[1]: found the field 'loss', which looks like a rule of training"),
        ({**GOOD, "loss_weight": 1.0}, "found the field 'loss_weight'"),
        ({**GOOD, "trainable": False}, "--ignore-column messages.trainable"),
        ({**GOOD, "isTrainable": False}, "found the field 'isTrainable'"),
        ({**GOOD, "training_detail": []}, "found the field 'training_detail'"),
        ({**GOOD, "masked": True}, "found the field 'masked'"),
        ({**GOOD, "weight": 0.5}, "messages[1]: found weight 0.5, expected 0 or 1"),
        ({**GOOD, "train": "false"}, "found train 'false', expected 0 or 1"),
        ({**GOOD, "weight": 0}, "no token of the assistant is left"),
    ],
)
def test_other_rules_are_refused(message: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"messages": [USER, message]}
    assert said in build(tmp_path, capsys, rows)
    name = next(iter(message.keys() - GOOD.keys()))
    summary = build(tmp_path, capsys, rows, more=["--ignore-column", f"messages.{name}"])
    assert learnt(tmp_path / "out") == ["good<|im_end|>\n"]
    assert not summary["unprinted"]


def test_others_are_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"prompt": [{**USER, "train": True}], "completion": [GOOD]}
    assert "prompt[0]: found train True of the role 'user', expected 0 or none" in build(tmp_path, capsys, rows)
    build(tmp_path, capsys, rows, more=["--ignore-column", "prompt.train"])


def test_names_that_only_resemble_rules_are_no_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = {**GOOD, "constraint": 1, "glossary": "x", "name": "n", "label": "y"}
    assert build(tmp_path, capsys, {"messages": [USER, message]})["documents"] == 1


CALL = {"type": "function", "function": {"name": "find", "arguments": {"city": "Z"}}}
SHOWN = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and m.tool_calls %}{{ m.reasoning_content }}{% endif %}"
    "{{ m.content }}{% for t in m.tool_calls or [] %}{{ t.function.name }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_a_template_does_not_print_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = {"role": "assistant", "content": "", "reasoning_content": "think", "tool_calls": [CALL]}
    tool = {"role": "tool", "content": "sun", "tool_call_id": "1"}
    talk = [USER, calls, tool, {**GOOD, "reasoning_content": "so", "tool_calls": []}]
    rows = [{"messages": talk, "tools": [{"name": "find"}]}] * 3 + [{"messages": [USER, {**GOOD, "weight": 1}]}] * 5
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    plain += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    found = build(tmp_path, capsys, *rows, template=plain)["unprinted"]
    lost = {"assistant.reasoning_content": 6, "assistant.tool_calls": 3, "tool.tool_call_id": 3, "tools": 3}
    assert found == lost
    marked = plain.replace(
        "<|im_start|>{{ m.role }}\n", "{% if m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }}\n"
    )
    found = build(tmp_path, capsys, *rows, template=marked.replace("{% endfor %}", "{% endif %}{% endfor %}"))
    assert found["unprinted"] == {**lost, "tool.content": 3}
    found = build(tmp_path, capsys, *rows, template=SHOWN)["unprinted"]
    assert found == {"assistant.reasoning_content": 3, "tool.tool_call_id": 3}
    assert not build(tmp_path, capsys, *rows[3:], template=plain)["unprinted"]


def test_the_summary_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = command(tmp_path, {"messages": [USER, {**GOOD, "tool_calls": [CALL]}]})
    for more in (["--dry-run"], []):
        assert main([*words, *more]) == 0
        assert "lost: assistant.tool_calls (1)" in capsys.readouterr().out


def test_what_was_read_again_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [USER, {**GOOD, "tool_calls": [CALL]}]}, {"messages": []}] * 3
    summary = build(tmp_path, capsys, *rows, more=["--bad-records", str(tmp_path / "bad")])
    assert (summary["unprinted"], summary["bad_records"]) == ({"assistant.tool_calls": 3}, 3)


def test_null_is_no_value_in_any_format(tmp_path: Path) -> None:
    """Of one Dataset, in each format that datasets itself writes, and of the rows that it was made of."""
    datasets = pytest.importorskip("datasets")
    shown = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}")
    rows = [
        {"messages": [USER, {**GOOD, "tool_calls": [{"name": "f", "arguments": arguments}]}]}
        for arguments in ({"city": "Z", "limit": None}, {"n": 1})
    ]
    made = datasets.Dataset.from_list(rows)
    made.save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "rows.parquet")
    made.to_json(tmp_path / "rows.jsonl")
    words = command(tmp_path, *rows, template=shown)
    found = []
    for number, path in enumerate(["in.jsonl", "saved", "rows.parquet", "rows.jsonl"]):
        given = [str(tmp_path / path) if word.endswith("in.jsonl") else word for word in words]
        assert main([str(tmp_path / f"o{number}") if word == str(tmp_path / "out") else word for word in given]) == 0
        found.append(learnt(tmp_path / f"o{number}"))
    assert found == [found[0]] * 4
    assert "null" not in str(found)


def test_a_token_over_the_beginning_of_an_answer_is_of_the_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/datasets.md says, by both ways to know what the assistant says."""
    made = Tokenizer(
        models.BPE({"\u010a": 0, "\u010a\u010a": 1, "a": 2, "!": 3, "a!": 4}, [("\u010a", "\u010a"), ("a", "!")])
    )
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    using = SpecialTokens(FileTokenizer(made.to_str().encode(), "tokenizer", None), "text")
    for begin, end in (("", ""), ("{% generation %}", "{% endgeneration %}")):
        template = (
            "{% for m in messages %}{% if m.role == 'user' %}a{{ '\\n' }}{% else %}"
            + begin
            + "{{ m.content }}"
            + end
            + "{{ '!' }}{% endif %}{% endfor %}"
        )
        parser = ChatParser(ChatRules(template=template, specials={}), using, CHAT_COLUMNS)
        batch = parser.parse([json.dumps({"messages": [USER, {"role": "assistant", "content": "\na"}]}).encode()])
        assert batch.tokens is not None
        assert batch.tokens.values.tolist() == [2, 1, 4]
        assert batch.fields["loss_mask"].tolist() == [0, 0, 1]
