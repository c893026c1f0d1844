"""A Megatron corpus and a datatrove folder, adopted, and a native dataset with concepts, blended 70/30 in one YAML."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import conceptloader as cl
from conceptloader.config import present
from conceptloader.ingest.adopt.adopt import adopt
from tests.corpora.small import written
from tests.corpora.token_files import write_corpus, write_datatrove
from tests.packing.plain import parts_of

SEED, SEQ_LEN, TOPICS = 42, 64, 16
EOD, VOCABULARY = 249, 250
WEIGHTS = {"datatrove": 0.3, "megatron": 0.4, "native": 0.3}
TOKENIZER = cl.writing.Tokenizer(name="null", vocab_size=VOCABULARY, eos_id=EOD)

YAML = f"""\
seed: {SEED}
seq_len: {SEQ_LEN}
allowed_roots: [.]
datasets:
  megatron: {{path: adopted/megatron, weight: 0.4}}
  datatrove: {{path: adopted/datatrove, weight: 0.3}}
  native: {{path: native, weight: 0.3}}
tracks: {{concepts: {{}}}}
"""

Documents = list[list[int]]


def random_documents(seed):
    """Of 2 to 40 tokens, each with EOD at its end."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(1, 90, rng.integers(1, 40)).tolist(), EOD] for _ in range(100)]


def with_builder(folder, documents):
    """The prefix of a corpus written by megatron-core's IndexedDatasetBuilder."""
    return write_corpus(folder / "m", documents)


@dataclass(frozen=True)
class Blended:
    """config: the YAML. The rest is what must come out, worked out from the documents and the order alone."""

    config: Path
    documents: Mapping[str, Documents]

    @cached_property
    def streams(self):
        return {name: np.concatenate(documents) for name, documents in self.documents.items()}

    @cached_property
    def mixture(self):
        sizes = [(len(self.streams[name]) - 1) // SEQ_LEN for name in WEIGHTS]
        return cl.Mixture(names=list(WEIGHTS), sizes=sizes, weights=list(WEIGHTS.values()), seed=SEED)

    def members(self, samples):
        """dataset_id of each sample."""
        return self.mixture.sample_many(np.array(samples, np.uint64))[0].tolist()

    def tokens(self, samples):
        """int64 [samples, SEQ_LEN + 1]"""
        names, rows = list(WEIGHTS), []
        for k, _, window in zip(*self.mixture.sample_many(np.array(samples, np.uint64)), strict=True):
            rows.append(self.streams[names[k]][int(window) * SEQ_LEN :][: SEQ_LEN + 1])
        return np.stack(rows)

    def topics(self, samples):
        """The concept of each input's document, -1 in an adopted dataset: int64 [samples, SEQ_LEN]."""
        lengths = [len(document) for document in self.documents["native"]]
        native = np.repeat(np.arange(len(lengths)) % TOPICS, lengths)
        rows = np.full((len(samples), SEQ_LEN), -1)
        for row, (k, _, window) in enumerate(zip(*self.mixture.sample_many(np.array(samples, np.uint64)), strict=True)):
            if list(WEIGHTS)[k] == "native":
                rows[row] = native[int(window) * SEQ_LEN :][:SEQ_LEN]
        return rows


def write(
    folder,
    documents=None,
    megatron=with_builder,
):
    """documents: of each dataset; random ones by default. megatron: writes those of a .bin/.idx into a folder."""
    found = documents or {name: random_documents(seed) for seed, name in enumerate(WEIGHTS)}
    (folder / "raw").mkdir()
    adopt([megatron(folder / "raw", found["megatron"])], folder / "adopted" / "megatron", tokenizer=TOKENIZER)
    write_datatrove(folder / "raw", "tokens/00000.ds", found["datatrove"], size=4, tokenizer=None)
    adopt([folder / "raw" / "tokens"], folder / "adopted" / "datatrove", tokenizer=TOKENIZER)
    native = (
        (tokens, {"concepts": [(0, len(tokens), [number % TOPICS])]}) for number, tokens in enumerate(found["native"])
    )
    written(folder / "native", native, tokenizer=TOKENIZER, tracks={"concepts": {}})
    (folder / "data.yaml").write_text(YAML)
    return Blended(folder / "data.yaml", found)


def tokens_of(blend, sample):
    """What the trainer's sample reads: with the last label of a window, without the padding of a pack."""
    member, _, number = blend.order.sample(sample)
    view = present(blend.views, member)
    size, dataset = view.member.seq_len or 1 << 40, view.dataset
    start, stop = view.start + number * size, view.start + (number + 1) * size + 1
    if view.packs is not None:
        ranges = [(part.start, min(part.start + part.tokens + 1, part.end)) for part in parts_of(view.packs, number)]
        return [token for start, stop in ranges for token in dataset.tokens(start, stop).tolist()]
    if view.by_document:
        start, stop = dataset.document_range(view.start + number)
    return dataset.tokens(start, min(stop, start + size + 1)).tolist()


def topics_of(span_index, ids):
    """The concept of each token [B, S] from concept tensors, -1 where it has none."""
    index, ids = np.asarray(span_index), np.asarray(ids)
    inside = np.take_along_axis(ids[:, :, 0], index.clip(0), axis=1)
    return np.where(index >= 0, inside, -1)
