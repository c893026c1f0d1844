"""The peers' readers over the same tokens, each as its own documentation sets it up."""

import numpy as np
from data import DOCUMENT, ROOT, VOCABULARY

SEQ_LEN = 4096


def datatrove(stream):
    """datatrove's file dataset, which Nanoset reads with: item i is window i of seq_len + 1 tokens."""
    from datatrove.utils.dataset import DatatroveFileDataset

    return DatatroveFileDataset(stream, SEQ_LEN, token_size=2)


def megatron(tokens):
    """Megatron's GPTDataset over an IndexedDataset of the same tokens, for one epoch."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    prefix = str(ROOT / "gpt")
    if not (ROOT / "gpt.idx").exists():
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for start in range(0, len(tokens), DOCUMENT):
            document = tokens[start : start + DOCUMENT]
            builder.add_document(document, [len(document)])
        builder.finalize(f"{prefix}.idx")

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 1, 0, VOCABULARY, {}

    config = GPTDatasetConfig(
        random_seed=1, sequence_length=SEQ_LEN, blend=([prefix], None), split="1,0,0", path_to_cache=str(ROOT),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
        tokenizer=Tokenizer(),
    )  # fmt: skip
    indexed = IndexedDataset(prefix)
    indices = np.arange(len(indexed), dtype=np.int32)
    return GPTDataset(indexed, prefix, indices, len(tokens) // SEQ_LEN - 1, Split.train, config)


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


def litdata(tokens, batch):
    """litdata's loader of one long token stream, shuffled within chunks as it does."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    path = litdata_chunks(tokens, ROOT / "chunks")
    dataset = StreamingDataset(path, item_loader=TokensLoader(SEQ_LEN + 1), shuffle=True)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=0)
