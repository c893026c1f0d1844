"""Documents and the annotations of their chunks in parquet files of their own, and what a reader must find in them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("topic", "tone")
_PIECES = ["word ", "two words ", "é😀 ", "\u4e2d\u6587", "\n\n", "\t", "e\u0301", "'quoted' \"twice\" ", "end. "]


@dataclass
class Chunked:
    """spans: by document's id, [(start, end, {(kind, key), ...})]. The lists of rows are for a test to change."""

    path: Path
    documents: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    concepts: list[dict[str, Any]] = field(default_factory=list)
    spans: dict[int, list[tuple[int, int, set[tuple[str, int]]]]] = field(default_factory=dict)

    def score(self) -> dict[tuple[int, int, tuple[str, int]], float]:
        """Give each label of each chunk a score. Returns: the highest by (document, start, (kind, key))."""
        found: dict[tuple[int, int, tuple[str, int]], float] = {}
        for n, row in enumerate(self.chunks):
            for kind in KINDS:
                scores = [((n * 7 + i * 3) % 64 - 20) / 64 for i in range(len(row[kind] or ()))]
                row[f"{kind}_scores"] = scores or row[kind]
                for key, score in zip(row[kind] or (), scores, strict=True):
                    place = row["doc"], row["start"], (kind, key)
                    found[place] = max(score, found.get(place, -9.0))
        return found

    def write(self, files: int = 3) -> "Chunked":
        self.path.mkdir(parents=True, exist_ok=True)
        for name, rows in (("documents", self.documents), ("chunks", self.chunks)):
            for k in range(files):
                part = rows[k * len(rows) // files : (k + 1) * len(rows) // files]
                table = pa.Table.from_pylist(part, schema=pa.Table.from_pylist(rows).schema)
                pq.write_table(table, self.path / f"{name}{k}.parquet", row_group_size=7)
        pq.write_table(pa.Table.from_pylist(self.concepts), self.path / "concepts.parquet")
        return self

    def recipe(self, name: str = "recipe.yaml", **changes: Any) -> list[str]:
        """Options of a command: a recipe with the chunks, but for `changes` of its keys (None: without)."""
        chunks: dict[str, Any] = {
            "files": self.files("chunks"), "join": "doc", "labels": {kind: kind for kind in KINDS},
            "starts": "starts", "number": "k", "status": "status",
            "concepts": {"path": str(self.path / "concepts.parquet"), "kind": "concept_type"}, **changes,
        }  # fmt: skip
        chunks = {key: value for key, value in chunks.items() if value is not None}
        (self.path / name).write_text(json.dumps({"chunks": chunks}))
        return ["--recipe", str(self.path / name)]

    def files(self, name: str) -> list[str]:
        return [str(path) for path in sorted(self.path.glob(f"{name}[0-9].parquet"))]


def make(path: Path, rng: np.random.Generator, documents: int = 40) -> Chunked:
    """Not written yet. Chunks are shuffled; some are not annotated, some have no concept, some documents no chunk."""
    corpus = Chunked(path)
    keys = rng.choice(1000, 60, replace=False).tolist()
    corpus.concepts = [
        {"concept_id": key, "concept_type": KINDS[i % 2], "name": f"concept {i}", "description": f"is {key}"}
        for i, key in enumerate(keys)
    ]
    for number in rng.permutation(documents).tolist():
        pieces = ["".join(rng.choice(_PIECES, rng.integers(1, 9))) for _ in range(rng.integers(0, 6))]
        ends = np.cumsum([len(piece) for piece in pieces]).tolist()
        starts = [0, *ends[:-1]] if pieces else []
        corpus.documents.append({"doc": number, "body": "".join(pieces), "starts": starts, "source": f"s{number}"})
        corpus.spans[number] = []
        for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
            status = "ok" if rng.random() < 0.8 else "skipped"
            chosen = rng.choice(60, rng.integers(0, 5)).tolist()
            labels: dict[str, Any] = {kind: [keys[i] for i in chosen if KINDS[i % 2] == kind] for kind in KINDS}
            if status == "ok":
                corpus.spans[number].append((start, end, {(kind, key) for kind in KINDS for key in labels[kind]}))
            stripped = pieces[k].strip() if rng.random() < 0.5 else pieces[k]
            row = {"doc": number, "k": k, "start": start, "end": end, "status": status, "text": stripped}
            corpus.chunks.append(row | {kind: labels[kind] or (None if k % 2 else []) for kind in KINDS})
    corpus.chunks = [corpus.chunks[i] for i in rng.permutation(len(corpus.chunks)).tolist()]
    return corpus
