"""What a batch may hold: a row for each array, and the section of the configuration that switches them.

Kernels' records, the layout of a batch, its types, the names that no field may have and docs/batch-keys.md follow from
these rows. A new array is a row, its name in `TensorKey`, its switch in `Outputs`, and a loop where `loop` says.
"""

import dataclasses
from collections.abc import Collection
from typing import Literal, NamedTuple

from conceptloader.base.checks import as_names
from conceptloader.base.strict import Negative, Section
from conceptloader.errors import ConfigError

LOSS_WEIGHT = "loss_weight"

# Besides fields and tracks, whose names are known at run time only. consumed_samples is TrainedLoader's.
TensorKey = Literal[
    "input_ids", "labels", "tokens", "loss_mask", "loss_weight", "position_ids", "document_ids", "cu_seqlens",
    "dataset_id", "sample_index", "sample_seed",
]  # fmt: skip
IntKey = Literal["max_seqlen", "consumed_samples"]


class Row(NamedTuple):
    """An array of a batch.

    Attributes:
        name: In the batch; of a track, after its name and "_".
        dtype: "" for that in the dataset, or the word for what is no array.
        shape: B samples, S inputs; of a track M spans and K concepts; n and m, known when a batch is read. Empty for
            what is no array.
        text: What it holds.
        loop: The function that fills it, with its file.
        blank: What kernels put, 0 or -1, before the loop runs: of a track everywhere, else after the tokens that are
            read, and where tokens are taken out. None where the loop does it.
        labels: It stands at the labels.
        switch: The key of `outputs`, if it is not the name; of a track, how it is laid out, if that decides.
        documents: The loop needs the tables of documents.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    text: str
    loop: str
    blank: int | None = None
    labels: bool = False
    switch: str = ""
    documents: bool = False


_B, _BS, _BM, _BMK = ("B",), ("B", "S"), ("B", "M"), ("B", "M", "K")
_TOKENS, _ROW, _BEGIN = "kernels/fill.py:fill_tokens", "kernels/fill.py:blank_row", "kernels/items.py:begin_document"
_SPAN, _CONCEPTS, _READER = "kernels/items.py:add_span", "kernels/items.py:read_concepts", "loader/batch/after.py"

BATCH = (
    Row("input_ids", "i8", _BS, "tokens", _TOKENS),
    Row("labels", "i8", _BS, "the next token of each input; `ignore_index`, if set, where `loss_mask` is 0", _TOKENS),
    Row("tokens", "i8", ("B", "S + 1"), "one tensor, of which `input_ids` and `labels` are views", _TOKENS,
        switch="shared_labels"),
    Row("loss_mask", "f4", _BS, "1, or 0 for no loss: padding; excluded samples and labels; tokens with 0 in the "
        "dataset's field `loss_mask`; labels masked by `mask_document_boundaries: true` or `loss_on_eos: false`",
        _TOKENS, blank=0, labels=True),
    Row(LOSS_WEIGHT, "f4", _BS, "weight of each label's loss, not included in `loss_mask`: multiply the loss by both",
        _TOKENS, blank=0, labels=True),
    Row("position_ids", "i8", _BS, "from 0 at the start of the window, or of each document", _ROW),
    Row("document_ids", "i8", _BS, "document number in its dataset, -1 for none", _BEGIN, blank=-1, documents=True),
    Row("cu_seqlens", "i4", ("n + 1",), "cumulative boundaries of the n sequences in the B * S inputs", _BEGIN,
        documents=True),
    Row("max_seqlen", "int", (), "length of the longest sequence", "kernels/fill.py:end_batch", switch="cu_seqlens"),
    Row("dataset_id", "i8", _B, "index of the dataset's name in alphabetical order", _ROW),
    Row("sample_index", "i8", _B, "the trainer's sample index", _ROW),
    Row("sample_seed", "i8", _B, "0 to `2**63 - 1`, a function of the seed and the sample index", _ROW),
)  # fmt: skip

TRACK = (
    Row("span_index", "i4", _BS, "index of the span that an input belongs to; -1 for none; -2 for a span dropped by "
        "`overflow: mark`", _SPAN, blank=-1),
    Row("num_spans", "i4", _B, "spans in the sample", _SPAN, blank=0),
    Row("spans", "i4", ("B", "M", "2"), "[start, end) of each span, clipped to the inputs", _SPAN, blank=0),
    Row("flags", "u1", _BM, "1: the span begins before the inputs; 2: it ends after them", _SPAN, blank=0),
    Row("ids", "i8", _BMK, "concept ids, -1 beyond the count", _CONCEPTS, blank=-1, switch="padded"),
    Row("counts", "i4", _BM, "concepts of each span", "kernels/items.py:find_records", blank=0, switch="padded"),
    Row("scores", "f4", _BMK, "one score per concept, 0 beyond the count, if the track has scores", _CONCEPTS, blank=0,
        switch="padded"),
    Row("offsets", "i8", ("B * M + 1",), "with k = b * M + m, `T_values[T_offsets[k]:T_offsets[k + 1]]` are the "
        "concepts of span m of sample b", "kernels/items.py:find_records", switch="ragged"),
    Row("values", "i8", ("V",), "concept ids of all spans, V in total", _CONCEPTS, switch="ragged"),
    Row("scores", "f4", ("V",), "one score per concept, if the track has scores", _CONCEPTS, switch="ragged"),
    Row("values", "", _BM, "the number of each span", _CONCEPTS, blank=0, switch="numbers"),
    Row("values", "", _BMK, "the numbers of each span, 0 beyond the count", _CONCEPTS, blank=0, switch="vectors"),
    Row("counts", "i4", _BM, "numbers of each span", "kernels/items.py:find_records", blank=0, switch="vectors"),
    Row("records", "list per sample", (), "decoded records of any codec", f"{_READER}:decode_records",
        switch="records"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossWeight(Section):
    """Where the weights of losses come from: a token field of f2 or f4, or else a track, by its name.

    A track has them in its spans, numbers of f2 or f4.

    missing: the weight of all tokens in datasets that have neither; without it, these are an error. outside: with a
    track, that of tokens in no span of it; a track needs it.
    """

    name: str
    missing: float | None = None
    outside: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnOptions(Section):
    """How the items of a column are read; `inputs` or `labels` alone is that of `at`.

    missing: stands where a token has no value, and on padding, which else is 0; without it, tokens that lack a value
    are an error. dtype: stored keeps what PyTorch does not compute with, which else is widened: u2 to int32, u4 to
    int64, bf16 to float32.
    """

    at: Literal["inputs", "labels"] = "labels"
    missing: float | None = None
    dtype: Literal["widened", "stored"] = "widened"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs(Section):
    """Which tensors a batch has besides input_ids and labels.

    position_ids: from 0 at the start of the window, or of every document (in a pack always), or none.
    mask_document_boundaries: no loss where the label is the first token of another document. loss_on_eos: False for no
    loss on end-of-document labels. ignore_index: what replaces labels without loss, those where loss_mask is 0; below
    0, since tokens are not; None to keep them. shared_labels: input_ids and labels are views of one tensor, `tokens`.
    sample_seed: a number for each sample, a function of the seed and the sample's index. loss_weight: what the loss of
    each label is to be multiplied by; a name alone is that of a LossWeight, and of a list the product holds, which is 1
    for an empty one, as a Config with weights by dataset sets it. fields: others, by name; each is aligned with the
    inputs that it belongs to, or with the labels. columns: items of fixed size for each token, likewise.
    """

    shared_labels: bool = False
    loss_mask: bool = True
    position_ids: Literal["window", "document", "off"] = "window"
    document_ids: bool = False
    cu_seqlens: bool = False
    mask_document_boundaries: bool = False
    dataset_id: bool = True
    sample_index: bool = True
    sample_seed: bool = False
    loss_on_eos: bool = True
    ignore_index: Negative | None = None
    loss_weight: str | LossWeight | tuple[str | LossWeight, ...] | None = None
    fields: dict[str, Literal["inputs", "labels"]] = dataclasses.field(default_factory=dict)
    columns: dict[str, Literal["inputs", "labels"] | ColumnOptions] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.loss_mask and (
            self.mask_document_boundaries or not self.loss_on_eos or self.ignore_index is not None
        ):
            raise ConfigError(
                "outputs.loss_mask",
                "false, but mask_document_boundaries, loss_on_eos: false and ignore_index need it",
                "true",
                "set it to true",
            )
        if self.shared_labels and self.ignore_index is not None:
            raise ConfigError(
                "outputs.ignore_index",
                f"{self.ignore_index} with shared_labels, where labels are the memory of the inputs, which "
                "would change too",
                "no ignore_index with it",
                "set shared_labels to false, or multiply the losses by loss_mask",
            )

    @property
    def rows(self) -> list[Row]:
        """What a batch has besides fields and tracks."""
        return [row for row in BATCH if getattr(self, row.switch or row.name, True) not in (False, None, "off")]

    @property
    def weights(self) -> dict[str, LossWeight]:
        """The factors of `loss_weight`, with all that each says, by their keys."""
        given = self.loss_weight
        listed = {f"[{k}]": one for k, one in enumerate(given)} if isinstance(given, tuple) else {"": given}
        return {
            f"outputs.{LOSS_WEIGHT}{key}": LossWeight(name=one) if isinstance(one, str) else one
            for key, one in listed.items()
            if one is not None
        }

    @property
    def column_options(self) -> dict[str, ColumnOptions]:
        """`columns`, in the order of their names, with all that it says."""
        given = sorted(self.columns.items())
        return {name: one if isinstance(one, ColumnOptions) else ColumnOptions(at=one) for name, one in given}

    @property
    def needs_documents(self) -> bool:
        """Whether the document table has to be read."""
        of_documents = self.position_ids == "document" or self.mask_document_boundaries
        return of_documents or any(row.documents for row in self.rows)

    def check_weights(self, names: Collection[str], option: str) -> None:
        """Raise ConfigError if the loss has weights, but the model gets `names` of a batch only, as `option` says.

        A string for `names` is an error too.
        """
        if "loss_weight" not in as_names(names, option) and self.loss_weight is not None:
            raise ConfigError(
                "outputs.loss_weight",
                f"weights, but {option} does not name loss_weight, so that the model would train as if all were 1",
                f"loss_weight in {option}",
                "name it there and multiply the losses by it, or leave the weights out",
            )
