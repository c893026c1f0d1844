"""The peers' readers over the same tokens, each as its own documentation sets it up."""

from pathlib import Path

import numpy as np
from data import ROOT

SEQ_LEN = 4096


def datatrove(stream):
    """datatrove's file dataset, which Nanoset reads with: item i is window i of seq_len + 1 tokens."""
    from datatrove.utils.dataset import DatatroveFileDataset

    return DatatroveFileDataset(stream, SEQ_LEN, token_size=2)


def olmo(streams):
    """OLMo-core's fixed-length dataset of flat token files."""
    from olmo_core.data import NumpyFSLDataset

    return NumpyFSLDataset(
        *streams, sequence_length=SEQ_LEN, pad_token_id=0, eos_token_id=1, vocab_size=50_000, dtype=np.uint16
    )


def megatron(tokens, document, samples):
    """Megatron's GPTDataset over an IndexedDataset of the same tokens."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    prefix = ROOT / "megatron"
    if not Path(f"{prefix}.idx").exists():
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for start in range(0, len(tokens), document):
            builder.add_document(tokens[start : start + document], [len(tokens[start : start + document])])
        builder.finalize(f"{prefix}.idx")

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 1, 0, 50_000, {}

    config = GPTDatasetConfig(
        random_seed=1, sequence_length=SEQ_LEN, blend=([str(prefix)], None), split="1,0,0", path_to_cache=str(ROOT),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
        tokenizer=Tokenizer(),
    )  # fmt: skip
    indexed = IndexedDataset(str(prefix))
    indices = np.arange(len(indexed), dtype=np.int32)
    return GPTDataset(indexed, str(prefix), indices, samples, Split.train, config)


def litdata_chunks(tokens, path):
    """One long token stream in litdata's own chunks, of 64 MB, its default."""
    if not (path / "index.json").exists():
        import torch
        from litdata import TokensLoader
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(path), chunk_bytes=1 << 26, item_loader=TokensLoader(SEQ_LEN + 1))
        for index, start in enumerate(range(0, len(tokens), 1 << 20)):
            writer.add_item(index, torch.from_numpy(tokens[start : start + (1 << 20)].astype(np.int32)))
        writer.done()
        writer.merge()
    return str(path)


def litdata(tokens):
    """litdata's streaming dataset of one long token stream, shuffled within chunks as it does."""
    from litdata import StreamingDataset, TokensLoader

    path = litdata_chunks(tokens, ROOT / "litdata")
    return StreamingDataset(path, item_loader=TokensLoader(SEQ_LEN + 1), shuffle=True)
