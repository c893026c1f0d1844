"""Packs as Megatron's packed sequences, and --sft, in a checkout that has them: run with a folder.

Prints "equal", or "absent" for a checkout without --dataloader-inter-document-masking.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDataset
from stock import adopted, data_of, dataset_config, run_checks
from torch.utils.data import default_collate

from conceptloader.cli import main as command
from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm import launch
from conceptloader.integrations.megatron_lm.dataset import SFT, STOCK_KEYS
from conceptloader.loader.torch.loader import make_dataloader

LENGTH = 32
PACKED = {"inter_document_masking": True, "create_attention_mask": False}


def yaml_of(path):
    content = yaml.safe_load(Path(path).read_text())
    for entry in content["datasets"].values():
        entry["path"] = str(Path(path).parent / entry["path"])
    return content


def packs_are_merged_as_get_batch_does(folder):
    from megatron.core import utils

    path, _ = adopted(folder, "ab", order="sequential", packing={"bins": 4})
    plain = make_dataloader({**yaml_of(path), "seq_len": LENGTH, "outputs": {"cu_seqlens": True}}, micro_batch_size=2)
    data = data_of(path, dataset_config(LENGTH, **PACKED), [len(plain) * 2, 0, 0], split="1,0,0")
    (dataset, *_) = data.datasets()
    several = 0
    for number, expected in enumerate(plain):
        collated = default_collate(dataset.__getitems__([2 * number, 2 * number + 1]))
        stock = {name: found for name, found in collated.items() if name in STOCK_KEYS}
        batch = utils.flatten_batch_for_packed_sequences(stock)
        assert batch["cu_seqlens"].tolist() == [expected["cu_seqlens"].tolist()]
        assert batch["cu_seqlens"].dtype == torch.int32
        assert int(batch["max_seqlen"]) == expected["max_seqlen"]
        several += len(expected["cu_seqlens"]) > 6
        for ours, theirs in (("input_ids", "tokens"), ("labels", "labels"), ("loss_mask", "loss_mask")):
            assert torch.equal(batch[theirs], expected[ours].reshape(1, -1)), theirs
        assert torch.equal(batch["position_ids"], expected["position_ids"].reshape(1, -1))
        # Every token is on one context-parallel rank; Megatron cuts the whole sequence here.
        found = []
        for rank in range(2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dist, "get_world_size", lambda group=None: 2)
                patch.setattr(dist, "get_rank", lambda group=None, rank=rank: rank)
                share = utils.get_batch_on_this_cp_rank(dict(batch), False, None, None, True)
            found += share["tokens"].flatten().tolist()
            assert share["cu_seqlens"].tolist() == batch["cu_seqlens"].tolist()
        assert sorted(found) == sorted(batch["tokens"].flatten().tolist())
    assert several > 3


class Sft:
    """As much of a tokenizer as Megatron's SFTDataset asks."""

    eod, pad, vocab_size = 256, 256, 257
    unique_identifiers = "none"

    def tokenize_conversation(self, messages, **options):
        tokens = np.frombuffer("".join(m["content"] for m in messages).encode(), np.uint8).astype(np.int64)
        return tokens, tokens


def sft_is_done_with_packs(folder):
    from megatron.core.datasets.utils import Split
    from megatron.training.datasets.sft_dataset import SFTDataset

    config = dataset_config(LENGTH, create_attention_mask=False, context_parallel_size=2, tokenizer=Sft())
    talks = [[{"role": r, "content": c * 3} for r, c in (("user", "a"), ("assistant", "b" * k))] for k in range(1, 9)]
    stock = SFTDataset(talks, None, np.arange(8), 8, Split.train, config)[0]
    (folder / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    (folder / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    build = ["build", str(folder / "talks.jsonl"), "--chat", "--tokenizer", "bytes"]
    build += ["--chat-template", str(folder / "chat.jinja"), "--out"]
    assert command([*build, str(folder / "free")]) == 0
    assert command([*build, str(folder / "filled"), "--pad-to-multiple-of", "4"]) == 0
    given = []
    for name in ("free", "filled"):
        path = folder / f"{name}.yaml"
        path.write_text(
            json.dumps({"datasets": {name: {"path": name}}, "packing": {"bins": 16}, "order": "sequential"})
        )
        builder = SimpleNamespace(cls=SFTDataset, config=config, sizes=[6, 0, 0], is_built_on_rank=lambda: True)
        (dataset, *_) = data_of(path, launch.config_of(builder), [6, 0, 0]).datasets()
        sample = dataset[0]
        assert {k: (v.dtype, v.shape) for k, v in stock.items()} == {
            k: (v.dtype, v.shape) for k, v in sample.items() if k not in ("sample_index", "dataset_id")
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 2)
            if name == "free":
                with pytest.raises(ConfigError, match="--sft: found documents of other lengths"):
                    [dataset[k] for k in range(6)]
                continue
            given = [dataset[k] for k in range(6)]
        for one in given:
            assert not (one["cu_seqlens"] % 4).any()
    trained = sum(int(one["loss_mask"].sum()) for one in given)
    assert trained == sum(3 * k for k in range(1, 9))
    path.write_text(json.dumps({"datasets": {name: {"path": name}}}))
    with pytest.raises(ConfigError, match="--sft: found a configuration without packing"):
        data_of(path, config)
    config.create_attention_mask = True
    with pytest.raises(ConfigError, match="--no-create-attention-mask-in-dataloader"):
        data_of(path, config)
    builder.cls = type("MultimodalDataset", (), {})
    with pytest.raises(ConfigError, match="found datasets of class MultimodalDataset, expected GPTDataset"):
        launch.config_of(builder)
    builder.cls = GPTDataset
    launch.config_of(builder)
    assert not getattr(config, SFT)


if __name__ == "__main__":
    run_checks(Path(sys.argv[1]), packs_are_merged_as_get_batch_does, sft_is_done_with_packs)
