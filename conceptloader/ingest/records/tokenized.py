"""Documents as Hugging Face's tokenizers and collators leave them: padding, and labels that say what is trained on."""

from dataclasses import replace

import numpy as np

from conceptloader.format.spec.columns import offsets_of
from conceptloader.ingest.records.batch import BadRow, Ragged, RowBatch
from conceptloader.ingest.records.columns import Columns

UNLEARNT = -100  # the label of tokens without a loss


def as_trained(batch: RowBatch, columns: Columns) -> RowBatch:
    """Without the padding of the attention mask; with a field loss_mask if labels say what is trained on.

    Raises: BadRow for zeros of the mask between tokens, and for labels that are neither their token nor -100.
    """
    if batch.tokens is None or (columns.labels is None and columns.attention_mask is None):
        return batch
    fields = dict(batch.fields)
    if columns.attention_mask is not None:
        batch = _without_padding(replace(batch, fields=fields), columns.attention_mask)
        fields = batch.fields
    assert batch.tokens is not None
    if columns.labels is not None:
        labels, tokens = fields.pop(columns.labels), batch.tokens
        wrong = np.flatnonzero((labels != UNLEARNT) & (labels != tokens.values))
        if len(wrong):
            at = int(wrong[0])
            row = int(np.searchsorted(tokens.offsets, at, "right")) - 1
            raise BadRow(
                row,
                f"{columns.labels}: found {labels[at]} for token {tokens.values[at]} at position "
                f"{at - tokens.offsets[row]}, expected the same, or {UNLEARNT} for one that is not trained on; "
                "write labels that are not shifted, or omit them: --ignore-column",
            )
        fields["loss_mask"] = (labels != UNLEARNT).astype(np.uint8)
    return replace(batch, fields=fields)


def _without_padding(batch: RowBatch, column: str) -> RowBatch:
    tokens = batch.tokens
    assert tokens is not None
    given, lengths = batch.fields.pop(column), np.diff(tokens.offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    kept = given == 1
    before = np.append(False, kept[:-1])
    before[tokens.offsets[:-1][lengths > 0]] = False
    begins = np.flatnonzero(kept & ~before)
    wrong = np.append(rows[(given != 0) & ~kept], rows[begins[1:]][np.diff(rows[begins]) == 0])
    if len(wrong):
        problem = f"{column}: found more than one run of ones, or other numbers, expected ones, with zeros for padding"
        raise BadRow(int(wrong.min()), f"{problem} before or after them")
    lead = np.zeros(len(lengths), np.int64)
    lead[rows[begins]] = begins - tokens.offsets[rows[begins]]
    spans = {
        track: replace(one, start=one.start - lead[one.row], end=one.end - lead[one.row])
        for track, one in batch.spans.items()
    }
    counts = np.bincount(rows, kept, len(lengths)).astype(np.int64)
    fields = {name: values[kept] for name, values in batch.fields.items()}
    return replace(batch, tokens=Ragged(tokens.values[kept], offsets_of(counts)), fields=fields, spans=spans)
