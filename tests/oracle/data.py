"""What the bytes of a dataset say: docs/format.md, and "What a view is" of docs/subsets.md. All is read at once."""

import itertools
import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

NONE = 2**32 - 1


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a record; of a view, what one of its documents has of a span of the source."""

    start: int
    end: int
    record: bytes
    begins_before: bool = False
    ends_after: bool = False

    def cut(self, start, end, shift=0):
        """What tokens [start, end) have of it, moved by `shift`."""
        before, after = self.begins_before or self.start < start, self.ends_after or self.end > end
        return Span(max(self.start, start) + shift, min(self.end, end) + shift, self.record, before, after)


@dataclass
class Column:
    """items: [tokens, *shape], as they are stored. known: which tokens have one. whole: whether all of the source."""

    dtype: str
    items: np.ndarray
    known: np.ndarray
    whole: bool


@dataclass
class Data:
    """A dataset as one stream. documents: [start, end) by number; a token may be in none."""

    mode: str
    eos: int | None
    tokens: np.ndarray
    fields: dict[str, np.ndarray]
    documents: list[tuple[int, int]]
    ids: list[str]
    spans: dict[str, list[Span]]
    codecs: dict[str, tuple[str, dict[str, str]]]
    runs: list[tuple[int, int]] = field(default_factory=list)  # of a view: (first token of the source, tokens)
    shards: list[tuple[int, int]] = field(default_factory=list)  # of no view: their tokens
    columns: dict[str, Column] = field(default_factory=dict)

    @cached_property
    def document_of(self):
        """The number of each token's document, -1 for none."""
        found = np.full(len(self.tokens), -1)
        for number, (a, e) in enumerate(self.documents):
            found[a:e] = number
        return found


def dtype(name):
    return np.dtype(name).newbyteorder("<")


@lru_cache(64)
def read(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest["format"] == "conceptview":
        return view(folder, manifest)
    table, eos = manifest["shards"], (manifest.get("tokenizer") or {}).get("eos_id")
    columns = {}
    data = Data(manifest["mode"], eos, np.empty(0), {}, [], [], {}, {})
    for name, track in manifest["tracks"].items():
        data.codecs[name], data.spans[name] = (track["codec"], track["parameters"]), []
    start = 0
    for k, tokens in enumerate(table["tokens"]):

        def contents(kind, k=k):
            kinds = table["files"].get(kind)
            if kinds is None or kinds["size"][k] is None:
                return None
            path = kinds.get("path", [None] * (k + 1))[k]
            return (folder / (path or f"{table['path'][k]}.{kind}")).read_bytes()

        layout = np.dtype([(name, dtype(kind)) for name, kind in manifest["layouts"][table["layout"][k]]])
        items = np.frombuffer(contents("stream.bin") or b"", layout, tokens, table["offset"][k])
        for name in layout.names or ():
            columns.setdefault(name, []).append(items[name])
        borders = contents("documents.bin")
        number = table["documents"][k]
        if borders is not None:
            first = np.frombuffer(borders, "<u8", number + 1).tolist()
            data.documents += [(start + a, start + b) for a, b in itertools.pairwise(first)]
        ids = contents("documents.ids")
        ends = np.frombuffer(ids or bytes(8 * number + 8), "<u8", number + 1).tolist()
        text = (ids or b"")[8 * number + 8 :]
        data.ids += [text[a:b].decode() for a, b in itertools.pairwise(ends)]
        for name in manifest["tracks"]:
            stored = table["tracks"][name]
            count, bounds = stored["records"][k], contents(f"{name}.index")
            if bounds is None:
                continue
            offsets = np.frombuffer(bounds, "<u8", count + 1).tolist()
            records = contents(f"{name}.data") or b""
            numbers = np.full(tokens, NONE, np.int64)  # of each token
            if stored["encoding"][k] == "dense":
                numbers = items[f"{name}_id"].astype(np.int64)
            elif stored["encoding"][k] == "spans":
                entries = np.frombuffer(contents(f"{name}.spans") or b"", "<u8, <u4", stored["entries"][k])
                lengths = np.diff([*entries["f0"].tolist(), tokens])
                numbers = np.repeat(entries["f1"].astype(np.int64), lengths)
            changes = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), tokens]
            for a, b in itertools.pairwise(changes):
                if a < b and numbers[a] != NONE:
                    record = records[offsets[numbers[a]] : offsets[numbers[a] + 1]]
                    data.spans[name].append(Span(start + a, start + b, record))
        data.shards.append((start, start + tokens))
        start += tokens
    data.tokens = np.concatenate(columns.pop("token")).astype(np.int64)
    own = {f"{name}_id" for name in manifest["tracks"]}
    data.fields = {name: np.concatenate(parts) for name, parts in columns.items() if name not in own}
    files = sorted(folder.glob("*.column.json"))
    data.columns = {file.name.removesuffix(".column.json"): read_column(folder, file, manifest) for file in files}
    return data


def read_column(folder, file, manifest):
    said, prefixes = json.loads(file.read_text()), manifest["shards"]["path"]
    name, files, lacks = file.name.removesuffix(".column.json"), said["files"], said.get("holes")
    kind = dtype("u2" if said["dtype"] == "bf16" else said["dtype"])
    items, known = [], []
    for k, tokens in enumerate(manifest["shards"]["tokens"]):
        own, there = np.zeros((tokens, *said["shape"]), kind), files["size"][k] is not None
        if there:
            data = (folder / (files.get("path", {k: None})[k] or f"{prefixes[k]}.{name}.column")).read_bytes()
            own = np.frombuffer(data, kind, own.size, files.get("offset", {k: 0})[k]).reshape(own.shape)
        has = np.full(tokens, there)
        if lacks and lacks["size"][k] is not None:
            data = (folder / (lacks.get("path", {k: None})[k] or f"{prefixes[k]}.{name}.holes")).read_bytes()
            has = np.array([not data[t // 8] >> t % 8 & 1 for t in range(tokens)], np.bool_)
        items.append(own)
        known.append(has)
    has = np.concatenate(known)
    return Column(said["dtype"], np.concatenate(items), has, bool(has.all()))


def view(folder, manifest):
    """Its stream is its runs, one after the other, each of which is a document."""
    source = read(folder / manifest["source"]["path"])
    runs = [(int(a), int(n)) for a, n in np.frombuffer((folder / "runs.bin").read_bytes(), "<u8").reshape(-1, 2)]
    place = np.concatenate([np.arange(a, a + n) for a, n in runs])
    fields = {name: values[place] for name, values in source.fields.items()}
    made = Data(source.mode, source.eos, source.tokens[place], fields, [], [], {}, source.codecs, runs)
    made.spans = {name: [] for name in source.spans}
    of_source = source.columns.items()
    made.columns = {name: Column(c.dtype, c.items[place], c.known[place], c.whole) for name, c in of_source}
    start = 0
    for a, n in runs:
        made.documents.append((start, start + n))
        made.ids.append(next((i for (x, y), i in zip(source.documents, source.ids, strict=True) if x <= a < y), ""))
        for name, spans in source.spans.items():
            made.spans[name] += [s.cut(a, a + n, start - a) for s in spans if s.start < a + n and s.end > a]
        start += n
    return made
