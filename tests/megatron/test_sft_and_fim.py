"""--sft and --fim-data under an unmodified pretrain_gpt.py (MEGATRON_SRC), beside what Megatron's own classes make."""

import importlib.util
import json
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

import conceptloader as cl
from conceptloader.blend import load_config
from conceptloader.cli import main as command
from tests.corpora.tokenizers import byte_level
from tests.megatron.pretraining import (
    ALONE,
    SAVED,
    STEPS,
    each_checkout,
    ended,
    needs_checkout,
    pretrain,
    same_losses,
    saving,
)

pytestmark = needs_checkout
S = 64


def upstream(checkout: Path, name: str) -> Any:
    """A module of Megatron's training/datasets, on the installed megatron-core. Skips where conceptloader has none."""
    if "inter_document_masking" not in (checkout / "megatron/core/datasets/gpt_dataset.py").read_text():
        pytest.skip("conceptloader takes --sft and --fim-data from core 0.19 on")
    spec = importlib.util.spec_from_file_location(name, checkout / f"megatron/training/datasets/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(*words: object) -> None:
    assert command(["build", *map(str, words)]) == 0


def trained(run_of: Callable[..., Any], folder: Path) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Samples in the order of training, over a resume whose losses are those of a run in one piece."""
    whole = ended(run_of(folder / "whole"))
    parts = [ended(run_of(folder / "first", *saving(folder / "a"), "--exit-interval", str(SAVED)))]
    parts.append(ended(run_of(folder / "rest", *saving(folder / "a"))))
    same_losses(parts[1], whole)
    assert parts[0].taken[0] + parts[1].taken[0] == whole.taken[0]
    assert whole.samples(0) == ALONE.planned(0)
    rows = []
    for line in whole.taken[0]:
        arrays = {key: np.array(line[key]).reshape(2, -1) for key in line if len(line[key])}
        rows += [{key: values[k] for key, values in arrays.items()} for k in range(2)]
    return rows


@each_checkout
def test_sft(checkout: Path, tmp_path: Path) -> None:
    """Megatron's SFTDataset, given the conversations of a pack, makes the same sample of them.

    Apart from labels without a loss, and from padding, which is a sequence here and the end of the last one there.
    """
    theirs = upstream(checkout, "sft_dataset")
    rng = np.random.default_rng(0)
    talks = [
        [{"role": "user", "content": "q" * a}, {"role": "assistant", "content": f"a{a % 10}" * b}]
        for a, b in rng.integers(1, 12, (600, 2)).tolist()
    ]
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    (tmp_path / "chat.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    build(tmp_path / "talks.jsonl", "--chat", "--tokenizer", "bytes", "--chat-template", tmp_path / "chat.jinja",
          "--out", tmp_path / "talks")  # fmt: skip
    config = tmp_path / "data.yaml"
    config.write_text(yaml.safe_dump({"datasets": {"talks": {"path": "talks"}}, "packing": {"bins": 8}}))
    more = ("--sft", "--no-create-attention-mask-in-dataloader", "--calculate-per-token-loss", "--vocab-size", "257")
    rows = trained(lambda folder, *words: pretrain(checkout, folder, ALONE, *more, *words, config=config), tmp_path)

    class Tokenizer:
        eod = pad = 256

        def tokenize_conversation(self, messages: Any, **options: Any) -> Any:
            return tuple(np.array(values) for values in messages[0]["content"])

    given = SimpleNamespace(tokenizer=Tokenizer(), sequence_length=S, context_parallel_size=1, reset_position_ids=False,
                            create_attention_mask=False, reset_attention_mask=False)  # fmt: skip
    several = masked = 0
    for row in rows:
        edges = np.unique(row["cu_seqlens"])
        used = int(np.flatnonzero(row["tokens"] != 256).max(initial=-1)) + 1
        if not used:
            continue  # the pack of a block with fewer documents
        conversations, length = [], 0
        for a, b in pairwise(edges.tolist()):
            if a >= used:
                break
            tokens, labels = row["tokens"][a:b], row["labels"][a:b]
            # The target of a token is its own id where the sample trains it, as label of the token before.
            loss = np.append(0, row["loss_mask"][a : b - 1])
            targets = np.where(loss > 0, np.append(0, labels[:-1]), theirs.IGNORE_INDEX)
            conversations.append({"role": "system", "content": (tokens, targets)})
            length = b
        dataset = SimpleNamespace(
            config=given, dataset=[conversations], indices=[0],
            _split_conversations=lambda talks: theirs.SFTDataset._split_conversations(None, talks),
        )  # fmt: skip
        sample = theirs.SFTDataset.__getitem__(dataset, 0)
        assert sample["tokens"].tolist() == row["tokens"].tolist()
        assert sample["loss_mask"].tolist() == row["loss_mask"].tolist()
        keeps = row["loss_mask"] > 0
        assert sample["labels"].numpy()[keeps].tolist() == row["labels"][keeps].tolist()
        assert sample["position_ids"].tolist()[:used] == row["position_ids"].tolist()[:used]
        theirs_edges = np.unique(sample["cu_seqlens"].numpy())
        assert theirs_edges[:-1].tolist() == [edge for edge in edges.tolist() if edge < length][: len(theirs_edges) - 1]
        several += len(conversations) > 2
        masked += int((row["loss_mask"][:used] == 0).sum())
    assert len(rows) == STEPS * 8
    assert several > 30
    assert masked > 200


@each_checkout
def test_fill_in_the_middle(checkout: Path, tmp_path: Path) -> None:
    """Each document is what Megatron's GPTFIMDataset makes of it with the same draws, which are not its own."""
    theirs = upstream(checkout, "fim_dataset").GPTFIMDataset
    made, kinds = byte_level(), ("prefix", "middle", "suffix", "pad")
    extra = {**{kind: f"<fim_{kind}>" for kind in kinds}, "eod": "<|endoftext|>"}
    made.add_special_tokens([AddedToken(name, special=True) for name in extra.values()])
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=extra["eod"]).save_pretrained(tmp_path / "model")
    texts = [f"def f{k}(x):\n    return x + {k}\n" for k in range(400)]
    (tmp_path / "code.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(tmp_path / "code.jsonl", "--tokenizer", tmp_path / "model", "--eos", extra["eod"], "--out", tmp_path / "code")
    config = tmp_path / "data.yaml"
    config.write_text(yaml.safe_dump({"datasets": {"code": {"path": "code"}}}))
    more = ["--fim-data", "--fim-rate", "0.8", "--fim-spm-rate", "0.5"]
    more += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tmp_path / "model")]
    more += [word for kind, name in extra.items() for word in (f"--fim-{kind}-token", name)]
    rows = trained(lambda folder, *words: pretrain(checkout, folder, ALONE, *more, *words, config=config), tmp_path)

    ids = {kind: made.token_to_id(name) for kind, name in extra.items()}
    inner = SimpleNamespace(
        ids_to_text=lambda tokens, remove_special_tokens: made.decode([*map(int, tokens)]),
        text_to_ids=lambda text: made.encode(text, add_special_tokens=False).ids,
    )

    def megatrons(document: Any, way: int, low: int, high: int) -> list[int]:
        draws = iter((1, way))
        rng = SimpleNamespace(binomial=lambda n, rate: next(draws), randint=lambda **_: np.array([high, low]))
        found = theirs._permute(
            SimpleNamespace(np_rng=rng), document, 0.8, 0.5, SimpleNamespace(_tokenizer=inner), truncate_or_pad=False,
            **{f"{kind}_tok_id": ids[kind] for kind in kinds},
        )  # fmt: skip
        return [*map(int, found)]

    settings = load_config(
        {**yaml.safe_load(config.read_text()), "outputs": {"cu_seqlens": True}, "seed": 7}, base_dir=tmp_path
    )
    plain = cl.make_dataloader(settings.with_seq_len(S), micro_batch_size=1)
    whole = {0: 0, 1: 0, None: 0}
    for row, batch in zip(rows, islice(plain, len(rows)), strict=True):
        tokens, at = row["tokens"].tolist(), 0
        stays = row["loss_mask"][:-1] > 0
        assert row["labels"][:-1][stays].tolist() == row["tokens"][1:][stays].tolist()
        for a, b in pairwise(batch["cu_seqlens"].tolist()):
            document = batch["input_ids"][0, a:b].numpy()
            body = document[: len(document) - int(document[-1] == ids["eod"])]
            if at >= S:
                break
            if tokens[at] != ids["prefix"]:
                way, found = None, body.tolist()
            else:
                text, way = made.decode(body.tolist()), int(tokens[at + 1 : at + 2] == [ids["suffix"]])
                cuts = [(low, high) for low in range(len(text) + 1) for high in range(low, len(text) + 1)]
                size = next((k for k in range(at, S) if tokens[k] == ids["eod"]), S) - at
                tried = (megatrons(body, way, low, high) for low, high in cuts)
                found = next((one for one in tried if one[:size] == tokens[at : at + size]), [])
            part = (found + document[len(body) :].tolist())[: S - at]
            assert part == tokens[at : at + len(part)], (at, a, b)
            whole[way] += at + len(part) < S
            at += len(part)
        assert set(tokens[at:]) <= {ids["pad"]}
    assert min(whole.values()) > 5, whole
