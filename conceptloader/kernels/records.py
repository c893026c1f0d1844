"""What kernels know and work with: records of int64 in arrays, and tuples that hold those arrays together.

Numba reads `call.shards[row].base` as one load. A flag is 0 or 1.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from conceptloader.kernels.arrays import BATCH
from conceptloader.kernels.arrays import TRACK as TRACK_ROWS
from conceptloader.kernels.kernel import Array, I64Array, U64Array
from conceptloader.kernels.order import KernelTables


def record(fields: str) -> np.dtype[Any]:
    """The type of a record with these fields, of which each is an int64."""
    return np.dtype([(name, np.int64) for name in fields.split()])


# base: the shard's first token in its dataset. offset: bytes before its first stream item. documents: 0 without a
# table; first_document: number of its first one. layout: row of the layouts.
SHARD = record("base tokens offset documents first_document layout")

# What the shards of a dataset with one layout have in common. item: bytes of a stream item. code: position of the token
# type in READABLE_TOKENS. loss: byte of the loss field in an item, or -1. block: tokens of a block of the block tables.
# top_id: the largest token id that there may be.
LAYOUT = record("item code loss block top_id")

# Of a track in a shard. kind: see below. field: byte of the record id in an item. top_concept: the largest concept id
# that there may be. id_bytes, score_bytes: of a concept in a record; the latter is 0 without scores. id_code and
# score_code: see system.take.
TRACK = record("kind field entries records data_size top_concept id_bytes score_bytes id_code score_code")
NONE, DENSE, SPANS = map(np.int64, range(3))
TRUNCATED = -2  # in <track>_span_index

# first_shard (-1: not in the configuration) and shards: rows of the shards. start, count: as in View. documents: 1 if
# batches need them. eos: -1 without one. pad: what padding holds. first_range, end_range: rows of what is left out
# with its samples; up to end_own, of what alone is. first_run, runs: rows of the runs of a
# view, 0 of them in other datasets; one more row closes them. Of packs: bins (0 for other samples), stop: the token
# behind the last one, overflow: see below.
MEMBER = record(
    "first_shard shards start count by_document documents dataset_id eos pad first_range end_range end_own "
    "first_run runs bins stop overflow"
)
SPLIT, CROP, REFUSE = map(np.int64, range(3))  # positions in blend.packing.OVERFLOWS

# Tokens that are left out from position `at` of the run on, -1 if they are never read: rising and apart in a member.
LEFT_OUT = record("start stop at")

# A run of a view: its first token in the view, and in the source, whose shards these are.
RUN = record("first source")

# The arrays of a batch: addresses of its arrays, under their names, 0 for one that is not wanted; and what its layout
# says. row_length: items of a row of input_ids and of labels, one more than seq_len if they share their memory: label j
# then lies where input j + 1 does. ignore_index: 0 for none.
ARRAYS = record(
    " ".join(row.name for row in BATCH)
    + " seq_len row_length document_positions mask_boundaries loss_on_eos ignore_index random_key"
)

# Those of a track: addresses, under their names; `values` (and `scores`) with room for `capacity` concepts, if it is
# ragged; bytes of an item of ids or values; single: each record has one; labels: its spans stand at the labels; its
# limits; and its files, as columns of Call.files.
OUTPUT = record(
    " ".join(dict.fromkeys(row.name for row in TRACK_ROWS))
    + " capacity width single max_spans max_concepts cut_spans cut_concepts mark ragged labels"
    " index_file data_file spans_file"
)

# An array that is blank where nothing was read; the first ones are the token-aligned fields. address; width: bytes of
# an item; labels: whether it stands at the labels; blank: 8 bytes, from its beginning on again and again. bytes: of a
# sample, in an array that does not run along its tokens, and then the width is 0.
COLUMN = record("address width labels blank bytes")

# Of a field in a shard. file: column of Call.files, -1 for a column without values in this shard. at: its byte in an
# item of the stream, or -1; of a column, bytes before its first item. code: see system.take, or where `at` is -1 the
# bits of the float32 that stands for it. step: bytes of an item of a column; unit: of an element, if they are widened,
# else 0. holes: column of Call.files, -1 if it is not read.
FIELD = record("file at code step unit holes")

# A span of the sample at hand. key: record number and slot below it, kept in order apart from the rest, which belongs
# to the slot: where the record begins in the data file, its concepts, those that are taken, and where in the values
# they go.
SLOT = record("key begin count taken target")

# How far a batch has come, up to `wants`. complete: its first samples, which need nothing any more; sample: the one at
# hand; now: its position in the run. sequences: entries of cu_seqlens, of all samples so far and of the complete ones;
# longest: of the sequences. row, column, at, size: the read at hand; track: the one at hand, -1 for packs. kind, place,
# value, other, limit: what is WRONG, see below; value also: see FAILED and GROW. announcing: nothing is read in this
# pass, the system is only told what will be, so that all is under way together. wants: how many there are. What follows
# holds for all batches of a thread. parts: how many the sample has. packed_member, packed_block: which packs are known;
# pieces, packed: how many of these there are. clock: of this call. held, num_held: address and number of HELD records.
# reads, read_bytes: of all calls.
STATE = record(
    "complete sample now sequences complete_sequences longest row column at size track kind place value other limit "
    "announcing wants parts packed_member packed_block pieces packed clock held num_held reads read_bytes"
)

# What a sample lacks: a file to be opened, or bytes [start, stop) of an object in a store.
WANT = record("sample row column start stop")

# What is wrong where a kernel returns WRONG: in the order, in the stream, in tables of documents and spans, in spans,
# in records, in packs. What place, value, other and limit are: see messages.py.
ABSENT_MEMBER, ABSENT_WINDOW = map(np.int64, range(2))
BAD_TOKEN, BAD_WEIGHT = map(np.int64, range(2, 4))
BAD_DOCUMENT, BAD_BLOCKS, BEGINS_LATE, FALLS, ENDS_EARLY = map(np.int64, range(4, 9))
NO_SUCH_RECORD, MANY_SPANS, BAD_CONCEPT, BAD_SCORE = map(np.int64, range(9, 13))
BAD_OFFSET, OFFSETS_FALL, NO_LIST, NO_NUMBER, LARGE_RECORD, MANY_CONCEPTS = map(np.int64, range(13, 19))
LONG_DOCUMENT, NO_PLACE = map(np.int64, range(19, 21))

# What a sample is made of: tokens [start, stop) of the shard in `row`, of which the first `inputs` go to `place` and
# behind it in the sample's row, and all but the first one, as labels, to one place before. row: -1 for inputs that stay
# as padding is. document: its number, if all are of one; the run of a view; or -1. base: where the member's dataset has
# the shard's first token; of a view, it may be before 0.
PART = record("row place start inputs stop document base")

# Of a document that ends at token `end` of the dataset: tokens [start, start + tokens). And where they are packed, once
# that is known: in which pack of the block, at which place.
PIECE = record("bin place start tokens end document")


class Room(NamedTuple):
    """What packing works with: pieces, of which the first ones are used.

    packed: documents at first, and then pieces in their packs, with room for `bins` more; order: a place for each
    piece; tally: i64 [seq_len + 1]; rooms: i64 [bins].
    """

    pieces: Annotated[Array, PIECE]
    packed: Annotated[Array, PIECE]
    order: I64Array
    tally: I64Array
    rooms: I64Array


# Bytes [start, stop) of an object in a store, at an address. file: row and column of Call.files, as one number.
HELD = record("file start stop address")


# Tokens [start, stop) of a member's dataset, that a sample is made of where the order does not say it.
GIVEN = record("start stop")


class Call(NamedTuple):
    """All that one thread's calls work with. Arrays of the records above; arrays and state have one each.

    files: i32 [shards, columns], descriptors, -1 for closed, OBJECT for what is in a store; used: i64 [shards], clock
    of the last use. given: of all samples of a batch; first_given: i64 [B + 1], where those of each begin, or empty.
    parts: of the sample at hand. slots: one for each span that a sample may have. scratch: u8, room for the stream
    items of a sample. buffer: u8, for other reads.
    """

    shards: Annotated[Array, SHARD]
    layouts: Annotated[Array, LAYOUT]
    tracks: Annotated[Array, TRACK, 2]  # [shards, tracks]
    members: Annotated[Array, MEMBER]
    left_out: Annotated[Array, LEFT_OUT]
    runs: Annotated[Array, RUN]
    files: Annotated[Array, np.int32, 2]
    used: I64Array
    arrays: Annotated[Array, ARRAYS]
    outputs: Annotated[Array, OUTPUT]  # [tracks]
    columns: Annotated[Array, COLUMN]
    fields: Annotated[Array, FIELD, 2]  # [shards, fields]
    given: Annotated[Array, GIVEN]
    first_given: I64Array
    parts: Annotated[Array, PART]
    slots: Annotated[Array, SLOT]
    scratch: Annotated[Array, np.uint8]
    buffer: Annotated[Array, np.uint8]
    state: Annotated[Array, STATE]
    wants: Annotated[Array, WANT]
    room: Room


class Picks(NamedTuple):
    """The samples of a batch: their indices, where they are trained, their members, windows of these.

    draws: to work in.
    """

    samples: U64Array
    positions: U64Array
    members: I64Array
    windows: U64Array
    draws: U64Array


class PickBy(NamedTuple):
    """The order that members and windows come from, NO_TABLES if they are given; scratch: the room that it needs."""

    tables: KernelTables
    scratch: U64Array


class Tokens(NamedTuple):
    """Tokens [start, stop) of the shard in `row`, which stand from `place` on in the row of the sample."""

    row: Any
    start: Any
    stop: Any
    place: Any
