"""examples/atlas/convert.py on odd documents and chunks, against what their generator says."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import conceptloader as cl

KINDS = ("content", "tone")  # the other two of the corpus have no labels here
PIECES = ["word ", "two words ", "é😀 ", "\u4e2d\u6587", "\n\n", "\t", "e\u0301", "'quoted' \"twice\" ", "end. "]


def test_chunks_become_spans(tmp_path, checkout):
    """Of a chunk that is wrong, and counted, nothing else changes."""
    rng, corpus, spans = np.random.default_rng(5), tmp_path / "atlas", {}
    keys = rng.choice(1000, 60, replace=False).tolist()
    kinds = dict(zip(keys, KINDS * 30, strict=True))
    concepts = [
        {"concept_id": key, "concept_type": kinds[key], "name": f"n{k // 3}", "rare": float("nan")}
        for k, key in enumerate(keys)
    ]
    documents, chunks = [], []
    for number in rng.permutation(40).tolist():
        pieces = ["".join(rng.choice(PIECES, rng.integers(1, 9))) for _ in range(rng.integers(0, 6))]
        ends = np.cumsum([0, *map(len, pieces)]).tolist()
        documents.append({"document_text": "".join(pieces), "doc_int_id": number, "chunk_char_starts": ends[:-1]})
        spans[str(number)] = []
        for k, piece in enumerate(pieces):
            chosen = rng.choice(keys, rng.integers(0, 5)).tolist()
            labels = {f"{kind}_ids": [key for key in chosen if kinds[key] == kind] or None for kind in KINDS}
            row = {"chunk_text": piece.strip(), "chunk_status": "ok", **labels, "document_ids": [], "entity_ids": []}
            chunks.append({"doc_int_id": number, "chunk_id": k, **row})
            start, end = (len("".join(pieces[:i]).encode()) for i in (k, k + 1))
            spans[str(number)].append((start, end, set(chosen)))
    tone = next(key for key in keys if kinds[key] == "tone")
    wrong = [
        ({"chunk_status": "skipped"}, "of status skipped"),
        ({"chunk_text": "something else"}, "of another text than the document has there"),
        ({"tone_ids": [2000]}, "with labels that are no concepts of their kind"),
        ({"content_ids": [tone]}, "with labels that are no concepts of their kind"),
        ({"chunk_id": 99}, "without a place in a document"),
    ]  # fmt: skip
    for chunk, (change, _) in zip(chunks, wrong, strict=False):
        spans[str(chunk["doc_int_id"])][chunk["chunk_id"]] = None
        chunk.update(change)
    types = {f"{kind}_ids": pa.list_(pa.int64()) for kind in (*KINDS, "document", "entity")}
    types |= {"chunk_char_starts": pa.list_(pa.int32())}
    for name, rows in (("documents", documents), ("annotated", [chunks[k] for k in rng.permutation(len(chunks))])):
        (corpus / f"fineweb-atlas-{name}").mkdir(parents=True)
        table = pa.table({key: pa.array([row[key] for row in rows], types.get(key)) for key in rows[0]})
        for k, part in enumerate((table.slice(0, 17), table.slice(17))):
            pq.write_table(part, corpus / f"fineweb-atlas-{name}/shard_{k:04}.parquet")
    pq.write_table(pa.Table.from_pylist(concepts), corpus / "fineweb-concept-atlas.parquet")

    command = [sys.executable, str(checkout / "examples/atlas/convert.py"), str(corpus), str(tmp_path / "out")]
    shown = subprocess.run([*command, "--tokenizer", "bytes"], check=True, stdout=subprocess.PIPE, text=True).stdout
    counts = [line.split(" chunks ") for line in shown.splitlines()]
    expected = {"annotated": sum(span is not None for some in spans.values() for span in some), "without a row": 1}
    for _, what in wrong:
        expected[what] = expected.get(what, 0) + 1
    assert {what: int(count) for count, what in counts} == expected
    ds = cl.open_dataset(tmp_path / "out")
    known = ds.concepts("concepts")
    assert [one.group for one in known] == [KINDS[0]] * 30 + [KINDS[1]] * 30
    assert len({one.name for one in known}) == 60
    assert all(one.details["rare"] is None and kinds[one.details["concept_id"]] == one.group for one in known)
    for number in range(ds.num_documents):
        part = ds.spans("concepts", *ds.document_range(number))
        ids = [{known[i].details["concept_id"] for i in found.tolist()} for found in part.decode()]
        found = [*zip(part.start.tolist(), part.end.tolist(), ids, strict=True)]
        assert found == [span for span in spans[ds.document_id(number) or ""] if span is not None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["atlas", "out", "out-tokens"]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["tracks"]["concepts"]["parameters"] == {"ids": "u2"}
