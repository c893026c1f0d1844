"""A corpus of the shape of guidelabs/fineweb-atlas, made of text that every Python installation has.

Documents are modules of the standard library, their docstrings or their sources; chunks are paragraphs of these, with
four kinds of concepts that simple rules find in them. The files have the folders, columns and types of the public
corpus, so that convert.py makes a dataset of either.
"""

import ast
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LONGEST = 1500  # characters of a chunk that is annotated
RULES = {
    "content": {
        "files": r"\b(files?|path|director(y|ies)|filename)\b",
        "networking": r"\b(sockets?|https?|urls?|server|client|host|e?mail)\b",
        "dates and times": r"\b(time|dates?|timezone|timeout|clock|seconds)\b",
        "text processing": r"\b(strings?|unicode|encod\w+|decod\w+|characters?|regex|pattern)\b",
        "mathematics": r"\b(float|integers?|numbers?|decimal|sum|random|complex)\b",
        "concurrency": r"\b(threads?|process(es)?|locks?|queue|async|await|event loop)\b",
        "error handling": r"\b(exceptions?|errors?|raises?d?|traceback|except)\b",
        "classes": r"\b(class(es)?|instances?|methods?|subclass(es)?|attributes?)\b",
        "collections": r"\b(lists?|dict\w*|sequences?|iterat\w+|tuples?|mapping|items?)\b",
        "testing": r"\b(tests?|assert\w*|mock|unittest)\b",
        "command line": r"\b(options?|argv|command|parser|usage|stdout|stderr)\b",
    },
    "tone": {
        "imperative": r"^\W*(Return|Set|Get|Create|Read|Write|Call|Open|Close|Parse|Add|Remove|Make|Check|Test)\b",
        "cautious": r"\b(should|must not|warning|deprecated|note that|be careful|may not)\b",
        "by example": r">>>|\be\.g\.|\bfor example\b",
        "formal": r"\b(def|self|return|import)\b.*\n",
    },
    "entity": {
        "Python": r"\bPython\b",
        "Unix": r"\b(Unix|POSIX|Linux)\b",
        "Windows": r"\b(Windows|win32|NT)\b",
        "HTTP": r"\bHTTP\b",
        "XML": r"\bXML\b",
        "RFC": r"\bRFC ?\d",
    },
}
DOCUMENT = ("reference documentation", "source code")
KINDS = ("content", "tone", "document", "entity")
LIST32, LIST64 = pa.list_(pa.int32()), pa.list_(pa.int64())


def texts(most: int) -> Iterator[tuple[str, list[str]]]:
    """(kind of document, its paragraphs) of up to `most` modules, in an order that does not depend on the machine."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not {"site-packages", "test", "idlelib"} & {*path.parts})
    random.Random(0).shuffle(paths)
    for path in paths[:most]:
        try:
            source = path.read_text("utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        named = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, named)]
        prose = [part for text in found if text for part in text.split("\n\n") if part.strip()]
        if len(prose) > 2:
            yield DOCUMENT[0], prose[:60]
        code = [part for part in re.split(r"\n\n+", source) if part.strip()]
        if len(code) > 2:
            yield DOCUMENT[1], code[:60]


def write(folder: Path, most: int = 400) -> dict[str, int]:
    """Write the corpus; rows of chunks in any order. Returns: documents, chunks, concepts."""
    ids, concepts = {}, []
    numbers = random.Random(1).sample(range(100, 5000), 99)  # sparse, and in no order of kinds
    for kind in KINDS:
        for name in DOCUMENT if kind == "document" else RULES[kind]:
            ids[kind, name] = numbers.pop()
            concepts.append({"concept_id": ids[kind, name], "concept_type": kind, "name": name})
    documents, chunks = [], []
    for number, (kind_of, paragraphs) in enumerate(texts(most)):
        parts = [f"{part}\n\n" for part in paragraphs]
        starts = [sum(map(len, parts[:k])) for k in range(len(parts))]
        words = [len(part.split()) for part in parts]
        token_starts = [sum(words[:k]) for k in range(len(words))]
        everything: dict[str, set[int]] = {kind: set() for kind in KINDS}
        for k, part in enumerate(parts):
            labels = {
                kind: [ids[kind, name] for name, rule in RULES[kind].items() if re.search(rule, part)] for kind in RULES
            }
            labels["document"] = [ids["document", kind_of]]
            done = len(part) <= LONGEST
            for kind in KINDS:
                everything[kind].update(labels[kind] if done else ())
            chunks.append(
                {
                    "doc_int_id": number, "chunk_id": k, "chunk_text": part.strip(),
                    "chunk_token_start": token_starts[k], "chunk_token_end": token_starts[k] + words[k],
                    "chunk_token_count": words[k],
                    "chunk_status": "ok" if done else "too_long",
                    **{f"{kind}_ids": labels[kind] if done else None for kind in KINDS},
                }
            )  # fmt: skip
        documents.append(
            {
                "document_text": "".join(parts), "doc_int_id": number, "chunk_count": len(parts),
                "document_token_count": sum(words), "chunk_char_starts": starts, "chunk_token_starts": token_starts,
                "chunk_token_counts": words, "has_long_chunk": max(map(len, parts)) > LONGEST,
                "has_segmentation_error": False, **{f"{kind}_ids": sorted(everything[kind]) for kind in KINDS},
            }
        )  # fmt: skip
    counts = Counter(label for chunk in chunks for kind in KINDS for label in chunk[f"{kind}_ids"] or ())
    for one in concepts:
        one |= {"description": f"{one['name']}, as simple rules find it", "taxonomy_lcc_path_primary": "QA76.73"}
        one |= {"chunk_count": counts[one["concept_id"]], "chunk_prevalence": counts[one["concept_id"]] / len(chunks)}
    random.Random(2).shuffle(chunks)
    _write(folder / "fineweb-atlas-documents", documents, 2)
    _write(folder / "fineweb-atlas-annotated", chunks, 3)
    pq.write_table(_table(concepts), folder / "fineweb-concept-atlas.parquet")
    return {"documents": len(documents), "chunks": len(chunks), "concepts": len(concepts)}


def train_tokenizer(documents: Path, path: Path, size: int = 2000) -> None:
    """A byte-level BPE of the documents' text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(pq.read_table(documents, columns=["document_text"])[0].to_pylist(), trainer)
    made.save(str(path))


def _write(folder: Path, rows: list[dict[str, Any]], files: int) -> None:
    folder.mkdir(parents=True)
    for k in range(files):
        pq.write_table(_table(rows[k::files]), folder / f"shard_{k:04}.parquet")


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    types = {"doc_int_id": pa.int32(), "chunk_id": pa.int16(), "concept_id": pa.uint32()}
    columns = {}
    for name in rows[0]:
        kind = types.get(name)
        if name.endswith("_ids"):
            kind = LIST64
        elif name.endswith(("_starts", "_counts")):
            kind = LIST32
        columns[name] = pa.array([row[name] for row in rows], kind)
    return pa.table(columns)
