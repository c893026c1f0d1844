"""A corpus of the shape of guidelabs/fineweb-atlas, made of text that every Python installation has.

Documents are modules of the standard library, their docstrings or their sources; chunks are paragraphs of these, with
four kinds of concepts that simple rules find in them. The files have the folders of the public corpus, and the columns
that convert.py reads.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from convert import KINDS

LONGEST = 1500  # characters of a chunk that is annotated
REFERENCE, SOURCE = "reference documentation", "source code"
RULES: dict[str, dict[str, str]] = {
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
    },
    "tone": {
        "imperative": r"^\W*(Return|Set|Get|Create|Read|Write|Call|Open|Close|Parse|Add|Remove|Make|Check|Test)\b",
        "cautious": r"\b(should|must not|warning|deprecated|note that|be careful|may not)\b",
        "by example": r">>>|\be\.g\.|\bfor example\b",
        "formal": r"\b(def|self|return|import)\b.*\n",
    },
    "entity": {"Python": r"\bPython\b", "Unix": r"\b(Unix|POSIX|Linux)\b", "Windows": r"\b(Windows|win32|NT)\b"},
    "document": {REFERENCE: "", SOURCE: ""},
}


def texts(most: int) -> Iterator[tuple[str, list[str]]]:
    """(kind of document, its paragraphs) of up to `most` modules, in an order that does not depend on the machine."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in root.rglob("*.py") if not {"site-packages", "test", "idlelib"} & {*path.parts})
    random.Random(0).shuffle(paths)
    named = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in paths[:most]:
        try:
            source = path.read_text("utf-8")
            nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, named)]
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        prose = "\n\n".join(ast.get_docstring(node) or "" for node in nodes)
        for kind, text in (REFERENCE, prose), (SOURCE, source):
            parts = [part for part in re.split(r"\n\n+", text) if part.strip()]
            if len(parts) > 2:
                yield kind, parts[:60]


def write(folder: Path, most: int = 400) -> list[str]:
    """Write the corpus; rows of chunks in any order. Returns the texts of its documents."""
    numbers = random.Random(1).sample(range(100, 5000), 99)  # sparse, and in no order of kinds
    concepts = [
        {"concept_id": numbers.pop(), "concept_type": kind, "name": name} for kind in KINDS for name in RULES[kind]
    ]
    documents, chunks = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (kind_of, paragraphs) in enumerate(texts(most)):
        starts, text = [], ""
        for k, paragraph in enumerate(paragraphs):
            starts.append(len(text))
            text += f"{paragraph}\n\n"
            done = len(paragraph) <= LONGEST
            ids: dict[str, list[int]] = {kind: [] for kind in KINDS}
            for one in concepts:
                kind, name = one["concept_type"], one["name"]
                if name == kind_of if kind == "document" else re.search(RULES[kind][name], paragraph):
                    ids[kind].append(one["concept_id"])
            row = {"doc_int_id": number, "chunk_id": k, "chunk_text": paragraph.strip()}
            row["chunk_status"] = "ok" if done else "too_long"
            chunks.append({**row, **{f"{kind}_ids": found if done else None for kind, found in ids.items()}})
        documents.append({"document_text": text, "doc_int_id": number, "chunk_char_starts": starts})
    random.Random(2).shuffle(chunks)
    for name, rows in ("documents", documents), ("annotated", chunks):
        (folder / f"fineweb-atlas-{name}").mkdir(parents=True)
        for k in range(2):
            pq.write_table(pa.Table.from_pylist(rows[k::2]), folder / f"fineweb-atlas-{name}/shard_{k:04}.parquet")
    pq.write_table(pa.Table.from_pylist(concepts), folder / "fineweb-concept-atlas.parquet")
    return [one["document_text"] for one in documents]
