"""Random datasets of every kind, a folder of them for each seed: shards, views of views, joined, adopted, bare."""

import itertools
from dataclasses import dataclass, field

import numpy as np

import conceptloader as cl
from conceptloader.format.spec.columnfile import TYPES
from conceptloader.format.spec.layout import FIELD_TYPES
from conceptloader.format.write.view import write_view
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.corpora.columns import add_column, random_items
from tests.corpora.small import written
from tests.oracle.data import read

VOCAB, EOS, CONCEPTS = 300, 7, 9
TOKENIZER = cl.writing.Tokenizer(name="test", vocab_size=VOCAB, eos_id=EOS)
STREAMS = ("plain", "more", "joined", "whole", "cut", "cut-again", "spans", "bare", "flat")
DOCUMENTS = ("documents", "some")
FIELDS = {f"x{kind}": kind for kind in FIELD_TYPES}


def write_all(folder, seed):
    rng = np.random.default_rng(seed)
    block_tokens, types = int(rng.choice([1, 3, 8, 2048])), Types.choose(rng)
    for name in ("plain", "more", "documents", "bare"):
        write(folder / name, name, rng, block_tokens, types)
        write_columns(folder / name, types)
    cl.concat([folder / "more", folder / "plain"], folder / "joined")
    make_subsets(folder / "plain", folder / "whole", SubsetOptions(where="share < 0.6 or document = 0", seed=seed))
    make_subsets(
        folder / "plain",
        folder / "spans",
        SubsetOptions(spans="'concept-1' in concepts or 'concept-2' in concepts or 'concept-3' in concepts"),
    )
    make_subsets(folder / "documents", folder / "some", SubsetOptions(where="share < 0.7 or document = 0", seed=seed))
    cut(folder / "cut", folder / "joined", rng)
    cut(folder / "cut-again", folder / "cut", rng)
    rng.integers(0, VOCAB, int(rng.integers(200, 3000))).astype("<u2").tofile(folder / "flat.bin")
    adopt([str(folder / "flat.bin")], str(folder / "flat"), dtype="uint16", tokenizer=TOKENIZER)
    write_columns(folder / "flat", types)
    return folder


@dataclass(frozen=True)
class Types:
    """What the datasets of a folder have in common, so that a configuration may mix them."""

    weight: str
    number: str
    scored: dict[str, str]
    columns: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def choose(cls, rng):
        number = str(rng.choice(["f2", "f4", str(rng.choice(FIELD_TYPES))]))
        scored = {"ids": pick(rng, "u2", "u4"), "scores": pick(rng, "f2", "f4")}
        columns = {
            f"y{k}": (pick(rng, *TYPES), tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())) for k in range(3)
        }
        return cls(pick(rng, "f2", "f4"), number, scored, columns)


def write(path, prefix, rng, block_tokens, types):
    """Documents of odd lengths, empty ones among them; shards of few, and of none."""
    bare = prefix == "bare"
    names = [f"concept-{k}" for k in range(CONCEPTS)]
    tracks = {
        "concepts": {"vocabulary": names},
        "scored": {"parameters": types.scored, "vocabulary": names},
        "numbers": {"codec": "numpy", "parameters": {"dtype": types.number}},
        "notes": {"codec": "json"},
    }
    longest, numbers = int(rng.choice([6, 20, 90])), itertools.count()

    def documents(shard):
        for _ in range(int(rng.integers(shard > 0 and 0, 2 + 900 // longest)) + 10 * (shard == 0)):
            number = next(numbers)
            n = int(rng.choice([0, 1, 2, longest, rng.integers(0, longest + 1)])) if number else 12
            tokens = rng.integers(0, VOCAB, n)
            tokens[-1:] = EOS
            given = {name: random_bits(rng, n, kind) for name, kind in FIELDS.items()}
            if not bare:
                given |= {"loss_mask": rng.integers(0, 4, n) > 0, "weight": rng.random(n)}
            spans = {} if bare else {t: random_spans(rng, n, t, types) for t in tracks}
            if number == 0 and not bare:
                spans["concepts"] = [(2, 9, [1])]  # so that no view is empty
            yield tokens, spans, f"{prefix}-{number}", given

    written(
        path,
        *map(documents, range(int(rng.integers(1, 5)))),
        mode="document" if prefix == "documents" else "token-stream" if bare else "stream-with-metadata",
        tokenizer=TOKENIZER,
        token_type=pick(rng, "u2", "u4"),
        fields=FIELDS if bare else {"loss_mask": "u1", "weight": types.weight, **FIELDS},
        tracks={} if bare else {name: {**how, "encoding": pick(rng, "dense", "spans")} for name, how in tracks.items()},
        block_tokens=block_tokens,
    )


def write_columns(path, types):
    """Some of all columns; in some of these all tokens have a value, in others not all tokens, or not all shards."""
    dataset = cl.open_dataset(path)
    rng = np.random.default_rng(dataset.num_tokens)
    for name, (kind, shape) in types.columns.items():
        missing = rng.random(dataset.num_tokens) < 0.2 if rng.random() < 0.3 else None
        without = [k for k in range(dataset.num_shards) if rng.random() < 0.3] if rng.random() < 0.3 else ()
        if rng.random() < 0.8:
            add_column(path, name, random_items(rng, dataset.num_tokens, kind, shape), kind, missing, without)


def pick(rng, *among):
    return str(rng.choice(among))


def random_bits(rng, n, kind):
    """NaN of any sort among them."""
    return rng.integers(0, 256, n * np.dtype(kind).itemsize, np.uint8).view(kind)


def random_spans(rng, n, track, types):
    found = []
    borders = np.unique(rng.integers(0, n + 1, int(rng.integers(0, 12)))).tolist()
    for start, end in itertools.pairwise(borders):
        if track == "numbers":
            found.append((start, end, (100 * rng.random(1)).astype(types.number)))
        elif track == "notes":
            found.append((start, end, {"at": start, "text": "ü" * int(rng.integers(0, 40))}))
        elif rng.random() < 0.7:
            ids = sorted(rng.choice(CONCEPTS, int(rng.integers(0, 4)), replace=False).tolist())
            found.append((start, end, (ids, rng.random(len(ids)).tolist()) if track == "scored" else ids))
    return found


def cut(path, source, rng):
    """A view of random pieces of documents, some of which touch, as `select --spans` makes them."""
    pieces = []
    for at, end in read(source).documents:
        while at < end:
            stop = min(end, at + int(rng.choice([1, 5, 40])))
            pieces += [(at, stop)] if rng.random() < 0.8 else []
            at = stop + int(rng.choice([0, 0, 1, 17]))
    path.mkdir()
    start, stop = np.array(pieces).T
    with cl.open_dataset(source) as dataset:
        write_view(str(path), str(path), dataset, start, stop, {})
