"""Two datasets that differ in what an exclusion takes out of both, in tokens and in spans, but not in lengths."""

import dataclasses

import numpy as np

from conceptloader.testing import random_documents, write_dataset

VOCAB = 64
OUT = [2, 3, 11, 17, 30]  # documents; two of them follow each other
IDS = [f"doc-{number}" for number in OUT]
CONCEPT = 3
NAMES = {"concepts": [f"concept-{k}" for k in range(6)], "topics": [f"topic-{k}" for k in range(4)]}


def documents(other, spans_only):
    """The documents of OUT, or only their spans of a concept, have other tokens, and other spans, if `other`."""
    made = random_documents(40, seed=3, vocab_size=VOCAB, mean_length=20, tracks={"concepts": 6, "topics": 4})
    if not other:
        return made
    rng = np.random.default_rng(9)
    for k, document in enumerate(made):
        tokens, spans = np.array(document.tokens), dict(document.spans)
        if spans_only:
            for n, (start, end, ids) in enumerate(spans["concepts"]):
                if CONCEPT in ids:
                    tokens[start:end] = rng.integers(1, VOCAB, end - start)
                    spans["concepts"] = [*spans["concepts"]]
                    spans["concepts"][n] = start, end, sorted({CONCEPT, *rng.integers(0, 6, 2).tolist()})
        elif k in OUT:
            tokens[:] = rng.integers(1, VOCAB, len(tokens))
            spans = {name: [(0, len(tokens), [int(rng.integers(4))])] for name in spans}
        made[k] = dataclasses.replace(document, tokens=tokens.tolist(), spans=spans)
    return made


def write_twins(folder, what, mode=None):
    """The two, which differ in "documents" or in "spans"; one has dense tracks."""
    paths = [folder / f"{what}-{mode}-{number}" for number in (0, 1)]
    for number, path in enumerate(paths):
        made, encoding = documents(bool(number), what == "spans"), ("spans", "dense")[number]
        write_dataset(path, made, mode=mode, vocab_size=VOCAB, shards=2, vocabularies=NAMES, encoding=encoding)
    return paths
