"""datatrove's documents as batches of the ingest package."""

from collections.abc import Mapping, Sequence
from typing import Any

from conceptloader.format.spec.codecs import MsgpackCodec
from conceptloader.ingest.rows.batch import BadRow, Batch
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.records import SpanCollector, check_id, check_text
from conceptloader.ingest.rows.vocabulary import Concepts


def to_batch(documents: Sequence[Any], columns: Columns, concepts: Mapping[str, Concepts]) -> Batch:
    """Text and id of each document; spans and metadata from its `metadata`, by the names in `columns`.

    Raises: BadRow, row = index into `documents`.
    """
    spans = {track: SpanCollector(concepts[track]) for track in columns.tracks}
    packer = MsgpackCodec() if columns.has_metadata else None
    ids, texts, metadata = [], [], []
    for row, document in enumerate(documents):
        try:
            ids.append(check_id(document.id))
            texts.append(check_text(document.text, "text"))
            for track, key in columns.tracks.items():
                found = document.metadata.get(key)
                if found is not None:
                    spans[track].add(row, found, key)
            if packer is not None:
                kept = {key: document.metadata[key] for key in columns.metadata_columns if key in document.metadata}
                metadata.append(packer.encode(kept))
        except ValueError as error:
            raise BadRow(row, str(error)) from error
    return Batch(
        ids=ids,
        texts=texts,
        tokens=None,
        spans={track: collector.finish() for track, collector in spans.items()},
        metadata=metadata if packer is not None else None,
    )
