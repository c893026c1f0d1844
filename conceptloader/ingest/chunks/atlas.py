"""guidelabs/fineweb-atlas as documents and chunks: its columns, as its card of v0.1 (2026) gives them.

What the card does not say is assumed, and checked on every row: starts count characters (code points), chunk_id counts
the chunks of a document from 0, and the ids of all kinds are those of one table.
"""

import os
from collections.abc import Sequence
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.ingest.chunks.join import Documents
from conceptloader.ingest.chunks.options import ConceptTable
from conceptloader.ingest.layouts.find import input_files

DOCUMENTS, CHUNKS, CONCEPTS = "fineweb-atlas-documents", "fineweb-atlas-annotated", "fineweb-concept-atlas.parquet"
KINDS = ("content", "tone", "document", "entity")


def atlas(directory: str | os.PathLike[str]) -> tuple[Documents, dict[str, Any]]:
    """The corpus in a copy of its repository: the documents, and arguments of `Chunks`. Raises: ConfigError."""
    documents, chunks = (parquet_files([os.path.join(directory, name)]) for name in (DOCUMENTS, CHUNKS))
    table = ConceptTable(path=os.path.join(directory, CONCEPTS), kind="concept_type")
    if not os.path.exists(table.path):
        raise ConfigError(
            table.path, "no such file", "the table of the concepts", f"copy it into {os.fspath(directory)}"
        )
    labels = {kind: f"{kind}_ids" for kind in KINDS}
    return Documents(files=documents, content="document_text"), {
        "files": chunks, "join": "doc_int_id", "labels": labels, "concepts": table, "starts": "chunk_char_starts",
        "number": "chunk_id", "status": "chunk_status", "text": "chunk_text", "damaged": "has_segmentation_error",
    }  # fmt: skip


def parquet_files(paths: Sequence[str], split: str | None = None) -> tuple[str, ...]:
    """The parquet files that `paths` name, in that order, see `input_files`. Raises: ConfigError, InputError."""
    found = input_files(paths, split)
    wrong = [file.path for file in found if not file.path.lower().endswith((".parquet", ".parq"))]
    if wrong or (paths and not found):
        raise ConfigError(
            wrong[0] if wrong else ", ".join(paths),
            "no parquet file",
            "a parquet file, or a directory of parquet files",
            "pass files that end in .parquet, or write these as parquet",
        )
    for file in found:
        if file.columns:
            raise ConfigError(
                file.path,
                f"column {min(file.columns)!r} in the names of its folders",
                "columns that the file holds",
                "write them into the file",
            )
    return tuple(file.path for file in found)
