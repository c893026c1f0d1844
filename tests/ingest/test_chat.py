"""Conversations: what is rendered, what of it is learnt, and what is refused."""

import contextlib
import io
import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.records.chat import MADE, ChatParser, ChatRules
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.special_tokens import SpecialTokens
from conceptloader.ingest.records.tokenizer import FileTokenizer
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import byte_level

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.role == 'assistant' %}{{ '\n' }}{% generation %}{{ m.content }}<|im_end|>{{ '\n' }}{% endgeneration %}"
    "{% else %}{{ '\n' }}{{ m.content }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "the red cat"},
    {"role": "user", "content": "naïve café? 日本語"},
    {"role": "assistant", "content": "größer als die Katze 😀"},
    {"role": "user", "content": "and the blue bird"},
    {"role": "assistant", "content": "sat on the mat"},
]


@pytest.fixture(scope="module")
def tokenizer():
    made = byte_level()
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    return FileTokenizer(made.to_str().encode(), "tokenizer", "<|im_end|>")


def parsed(using, *records):
    batch = using.parse([json.dumps(record).encode() for record in records])
    borders = batch.tokens.offsets.tolist()
    mask = batch.fields["loss_mask"]
    return [
        (name, batch.tokens.values[a:b].tolist(), mask[a:b].tolist())
        for name, a, b in zip(batch.ids, borders, borders[1:], strict=False)
    ]


USER, ANSWER = TALK[1], TALK[2]


def build(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["build", *map(str, arguments), "--json", "--quiet"]) == 0
    return json.loads(output.getvalue())


def model(tmp_path, tokenizer, template):
    """A folder of both."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.definition)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    return folder


def test_from_conversations_to_packs(tmp_path, tokenizer):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = model(tmp_path, tokenizer, CHATML)
    rows = [
        {"id": str(k), "messages": [USER, {"role": "assistant", "content": "cat " * (k % 7 + 1)}] * (1 + k % 3)}
        for k in range(40)
    ]
    write_rows(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    more = "--tokenizer", folder, "--chat", "--max-tokens", 60
    summary = build(tmp_path / "a.jsonl", "--out", tmp_path / "j", *more, "--workers", 1, "--shard-input-bytes", 4000)
    assert summary["documents"] == 40
    assert summary["truncated"] > 0
    build(tmp_path / "a.parquet", "--out", tmp_path / "p", *more)
    one, two = (cl.open_dataset(tmp_path / name) for name in "jp")
    assert one.mode == "document"
    assert one.num_shards > 1
    for name, wanted in one.read(0, one.num_tokens).items():
        assert np.array_equal(two.read(0, two.num_tokens)[name], wanted)
    config = {
        "seq_len": 64, "order": "sequential", "packing": {"bins": 8},
        "datasets": {"chat": {"path": str(tmp_path / "j")}}, "outputs": {"document_ids": True},
    }  # fmt: skip
    trained = []
    for batch in cl.make_dataloader(config, micro_batch_size=2):
        trained += batch["labels"][batch["loss_mask"] == 1].tolist()
    everything = one.read(0, one.num_tokens)
    assert sorted(trained) == sorted(everything["tokens"][everything["loss_mask"] == 1].tolist())


SHAPES = {
    "chatml": CHATML,
    "marked": MARKED,
    "line feed after the mark": MARKED.replace("{% generation %}", "{% generation %}\n"),
    "llama": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "mistral": "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}[{{ m.content }}]{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_and_masks_are_those_of_apply_chat_template(tokenizer, shape):
    """And without marks what each answer adds, as TRL has it, where its prompt ends with a token."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: Python 3.10 has none")
    made = Tokenizer.from_str(tokenizer.definition.decode())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    rules = ChatRules(template=SHAPES[shape], specials={"eos_token": "<|im_end|>"})
    using = ChatParser(rules, SpecialTokens(tokenizer, "error"), Columns(**MADE))
    for talk in (TALK, TALK[1:3], [USER, {"role": "assistant", "content": "a\n\n  b  \n"}]):
        (_, tokens, mask), = parsed(using, {"messages": talk})  # fmt: skip
        given = {"chat_template": SHAPES[shape], "return_dict": True}
        marked = "{% generation" in SHAPES[shape]
        whole = theirs.apply_chat_template(talk, return_assistant_tokens_mask=marked, **given)
        wanted = whole.get("assistant_masks") or [0] * len(tokens)
        for k, message in enumerate(talk if not marked else ()):
            if message["role"] == "assistant":
                prompt = theirs.apply_chat_template(talk[:k], add_generation_prompt=True, **given)["input_ids"]
                after = theirs.apply_chat_template(talk[: k + 1], **given)["input_ids"]
                wanted[len(prompt) : len(after)] = [1] * (len(after) - len(prompt))
        assert (tokens, mask) == (whole["input_ids"], wanted)


GOOD = {"role": "assistant", "content": "good"}


def test_null_is_no_value_in_any_format(tmp_path, tokenizer):
    """Of one Dataset, in each format that datasets itself writes, and of the rows that it was made of."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: `make test-trainers` has it")
    shown = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}")
    folder = model(tmp_path, tokenizer, shown)
    rows = [
        {"messages": [USER, {**GOOD, "tool_calls": [{"name": "f", "arguments": arguments}]}]}
        for arguments in ({"city": "Z", "limit": None}, {"n": 1})
    ]
    made = datasets.Dataset.from_list(rows)
    made.to_parquet(tmp_path / "rows.parquet")
    made.to_json(tmp_path / "rows.jsonl")
    found = []
    for number, path in enumerate(
        [write_rows(tmp_path / "in.jsonl", rows), tmp_path / "rows.parquet", tmp_path / "rows.jsonl"]
    ):
        build(path, "--out", tmp_path / str(number), "--tokenizer", folder, "--chat")
        with cl.open_dataset(tmp_path / str(number)) as ds:
            found.append(ds.tokens(0, ds.num_tokens).tolist())
    assert found == [found[0]] * 3


def test_a_token_over_the_beginning_of_an_answer_is_of_the_prompt(tokenizer):
    """As docs/conversations.md says, by both ways to know what the assistant says."""
    made = Tokenizer(
        models.BPE({"\u010a": 0, "\u010a\u010a": 1, "a": 2, "!": 3, "a!": 4}, [("\u010a", "\u010a"), ("a", "!")])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    for begin, end in (("", ""), ("{% generation %}", "{% endgeneration %}")):
        template = "{% for m in messages %}{% if m.role == 'user' %}a{{ '\\n' }}{% else %}" + begin
        template += "{{ m.content }}" + end + "{{ '!' }}{% endif %}{% endfor %}"
        bare = SpecialTokens(FileTokenizer(made.to_str().encode(), "tokenizer", None), "error")
        using = ChatParser(ChatRules(template=template, specials={}), bare, Columns(**MADE))
        assert parsed(using, {"messages": [USER, {"role": "assistant", "content": "\na"}]}) == [
            ("", [2, 1, 4], [0, 0, 1])
        ]
