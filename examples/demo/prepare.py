"""From modules to what a build takes: a jsonl file for each dataset, the vocabulary of concepts, a tokenizer."""

from collections.abc import Iterable
from pathlib import Path

import corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DATASETS = ("modules", "packages", "encodings")
END = "<|endoftext|>"
VOCAB_SIZE = 2048


def write_corpus(modules: list[corpus.Module], folder: Path) -> list[str]:
    """One jsonl file for each dataset, and concepts.txt; returns the concepts."""
    concepts = corpus.choose_concepts(modules)
    (folder / "concepts.txt").write_text("".join(f"{name}\n" for name in concepts), encoding="utf-8")
    for dataset in DATASETS:
        with open(folder / f"{dataset}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(corpus.lines(modules, dataset, set(concepts)))
    return concepts


def train_tokenizer(texts: Iterable[str], path: Path) -> None:
    """Byte-level BPE: every text can be written with its 256 bytes and the merges that were worth it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
