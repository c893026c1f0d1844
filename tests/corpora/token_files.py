"""Token files as Megatron and datatrove write them, each by its own library."""

import numpy as np
import torch

EOD = 99  # of `random_corpus`


def write_megatron(prefix, documents, dtype=np.uint16, end_last=True):
    """One .bin/.idx pair; returns the prefix as Megatron wants it."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for number, document in enumerate(documents):
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        if end_last or number + 1 < len(documents):
            builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def write_corpus(prefix, documents):
    """The same of documents of one sequence each."""
    return write_megatron(prefix, [[list(document)] for document in documents])


def random_corpus(prefix, seed, documents=40, longest=40):
    """Random documents of 1 to `longest` tokens, each ending in EOD and holding no other one."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, documents)
    return write_corpus(prefix, [[*rng.integers(0, EOD, n - 1).tolist(), EOD] for n in lengths])


def write_datatrove(
    folder,
    name,
    documents,
    size=2,
    tokenizer="gpt2",
    losses=None,
    **options,
):
    """One .ds file with its index; losses: bool for each token, with save_loss_metadata."""
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    options = {"save_final_metadata": True, **options}
    file = TokenizedFile(str(folder), name, tokenizer_name_or_path=tokenizer, token_size=size, **options)
    for k, document in enumerate(documents):
        file.write(document, None if losses is None else losses[k])
    file.close()
    return folder / name
