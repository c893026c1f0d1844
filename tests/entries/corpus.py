"""Small datasets in which every key of a configuration has something to change."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from tests.corpora.columns import add_column, random_items
from tests.corpora.small import written
from tests.entries.drivers import EOD, OWN_NAMES, SEQ_LEN, VOCABULARY

TOPICS = [f"topic-{k}" for k in range(8)]


@dataclass(frozen=True)
class Corpus:
    """Where everything lies. config: the base configuration. known: what was computed of configurations before."""

    root: Path
    config: dict[str, Any]
    known: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, make, *key):
        """What `make` gives, which is made once for each key."""
        text = json.dumps(key)
        if text not in self.known:
            self.known[text] = make()
        return self.known[text]

    def path(self, name):
        return str(self.root / name)

    def file(self, name, text):
        (self.root / name).write_text(text)
        return self.path(name)

    def state(self, samples):
        """A file that holds the state of a run after so many samples."""
        state = cl.batches(self.config, micro_batch_size=4).state_dict_at(int(samples))
        return self.file(f"state-{samples}.json", json.dumps(state))

    def learned(self):
        """The folder of a run with learned weights, of steps of 6 samples."""
        folder = self.root / "learned"
        if not folder.exists():
            folder.mkdir()
            loader = cl.batches({**self.config, "mixing": {"odm": {}}}, micro_batch_size=6)
            loader.log_start(folder, 0)
            for step, _ in zip(range(5), loader, strict=False):
                loader.observe({"a": 1.0 + step, "b": 5.0 - step})
        return str(folder)

    def made(self, given):
        """A part of rows.yaml, in which `$file NAME TEXT` is what `file` gives, and so on."""
        if isinstance(given, dict):
            return {key: self.made(value) for key, value in given.items()}
        if isinstance(given, list):
            return [*map(self.made, given)]
        if not isinstance(given, str) or not given.startswith("$"):
            return given
        how, *words = given[1:].split(" ", 2)
        return getattr(self, how)(*words)


def write(root):
    """Datasets a and b, and others, each for a key."""
    _dataset(root / "a", 1)
    _dataset(root / "b", 2)
    _dataset(root / "other-a", 3)
    _dataset(root / "another-tokenizer", 2, tokenizer="another")
    _dataset(root / "another-vocabulary", 2, topics=[name.upper() for name in TOPICS])
    _dataset(root / "unweighted", 2, weighted=False)
    _dataset(root / "named", 2, fields=sorted({name for names in OWN_NAMES.values() for name in names}))
    _dataset(root / "elsewhere" / "part", 2)
    cl.concat([root / "elsewhere" / "part"], root / "here" / "joined")
    _dataset(root / "corrupt", 2)
    file = next((root / "corrupt").rglob("*.stream.bin"))
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    datasets = {name: {"path": str(root / name), "weight": weight} for name, weight in (("a", 0.4), ("b", 0.6))}
    config = {"seq_len": SEQ_LEN, "seed": 5, "datasets": datasets}
    return Corpus(root, config)


def _dataset(
    path,
    seed,
    *,
    tokenizer="words",
    topics=TOPICS,
    weighted=True,
    fields=[],  # noqa: B006
):
    """60 documents a-0, a-1, ... of 3 to 60 tokens that end in EOD.

    Tracks: topic, spans of one or two concepts; length, a number for each document; vector, up to three.
    Fields: weight and parity. Columns: teacher and halves, where there are weights.
    """
    rng = np.random.default_rng(seed)
    floats = {"codec": "numpy", "parameters": {"dtype": "f4"}}
    tracks = {"topic": {"vocabulary": topics}, "length": floats, "vector": floats}
    types = {**({"weight": "f4"} if weighted else {}), "parity": "u1", **dict.fromkeys(fields, "u1")}
    documents = []
    for number in range(60):
        size = int(rng.integers(3, 60))
        tokens = np.array([*rng.integers(0, EOD, size - 1), EOD])
        edges = sorted({0, size, *rng.integers(0, size, 4).tolist()})
        spans = {
            "topic": [
                (start, stop, sorted(rng.choice(len(topics), int(rng.integers(1, 4)), replace=False).tolist()))
                for start, stop in pairwise(edges)
                if (start + number) % 3
            ],
            "length": [(0, size // 2, np.array([size / 8], "f4"))],
            "vector": [(0, size // 2, np.arange(size % 4, dtype="f4") + number)],
        }
        values = {name: tokens % 5 / 4 if name == "weight" else tokens % 2 for name in types}
        documents.append((tokens, spans, f"{path.name}-{number}", values))
    words = cl.writing.Tokenizer(name=tokenizer, vocab_size=VOCABULARY, eos_id=EOD)
    written(path, documents, tokenizer=words, tracks=tracks, fields=types)
    if weighted:
        total = sum(len(tokens) for tokens, *_ in documents)
        add_column(path, "teacher", random_items(rng, total, "u4", (3,)))
        add_column(path, "halves", random_items(rng, total, "bf16", (2,)), "bf16")
