"""--sft under an unmodified pretrain_gpt.py (MEGATRON_SRC), beside what Megatron's own classes make."""

import importlib.util
import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from conceptloader.cli import main as command
from tests.megatron.pretraining import ALONE, SAVED, STEPS, needs_checkout, same_losses

pytestmark = needs_checkout
S = 64


def upstream(pretrain):
    """Megatron's module of SFTDataset, on the installed megatron-core. Skips where conceptloader takes no --sft."""
    if not pretrain.has("inter_document_masking", "core/datasets/gpt_dataset.py"):
        pytest.skip("conceptloader takes --sft from core 0.19 on")
    path = pretrain.checkout / "megatron/training/datasets/sft_dataset.py"
    spec = importlib.util.spec_from_file_location("sft_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(*words):
    assert command(["build", *map(str, words)]) == 0


def trained(pretrain, *more, **options):
    """Samples in the order of training, over a resume whose losses are those of a run in one piece."""
    whole = pretrain("whole", ALONE, *more, **options)
    first = pretrain("first", ALONE, *more, save="a", stop=SAVED, **options)
    rest = pretrain("rest", ALONE, *more, save="a", **options)
    same_losses(rest, whole)
    assert first.taken[0] + rest.taken[0] == whole.taken[0]
    assert whole.samples(0) == ALONE.planned(0)
    rows = []
    for line in whole.taken[0]:
        arrays = {key: np.array(line[key]).reshape(2, -1) for key in line if len(line[key])}
        rows += [{key: values[k] for key, values in arrays.items()} for k in range(2)]
    return rows


def test_sft(pretrain, tmp_path):
    """Megatron's SFTDataset, given the conversations of a pack, makes the same sample of them.

    Apart from labels without a loss, and from padding, which is a sequence here and the end of the last one there.
    """
    theirs = upstream(pretrain)
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
    rows = trained(pretrain, *more, config=config)

    class Tokenizer:
        eod = pad = 256

        def tokenize_conversation(self, messages, **options):
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
