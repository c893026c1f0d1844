"""What is expected of each cell: the table that the tests run, and that table.md is made from.

python -m tests.entries.table            fails unless table.md is what the table says
python -m tests.entries.table --write    writes it
"""

import re
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.entries.drivers import ENTRIES, OWN_NAMES
from tests.entries.rows import EFFECT, REFUSED, ROWS, SAYS, SILENT

PAGE = Path(__file__).with_name("table.md")


@dataclass(frozen=True)
class Other:
    """Cells in which a key does not have its effect.

    rows: by the beginning of their keys. outcome: SILENT only where there is nothing to do, as `note` says, which is
    shown below the table.
    """

    rows: tuple[str, ...]
    entries: tuple[str, ...]
    outcome: str
    note: str = ""


MEGATRON = ("Megatron launcher", "Megatron own script")
NANOTRON = ("nanotron YAML", "nanotron own script")
FRAMEWORKS = (*MEGATRON, *NANOTRON, "torchtitan")
HUGGING_FACE = ("Hugging Face", "TRL")
SOURCES = ("SampleDataset", "GrainSource")
OWN_SCRIPTS = ("Megatron own script", "nanotron own script")
WITHOUT_THREADS = (*SOURCES, *MEGATRON, *NANOTRON)
READING = ("num_threads", "prefetch_batches", "prefetch_bytes", "warn_after_s", "timeout_s")
LEARNED = ("mixing: odm", "mixing: doremi", "mixing: module:Class", "mixing: file")


def _keys(rows: Iterable[str]) -> str:
    """As they are shown: a key, and in brackets what of it."""
    named = [row.partition(", ") for row in rows]
    return ", ".join(f"`{key}` ({what})" if what else f"`{key}`" for key, _, what in named)


def _own_names() -> str:
    entries: dict[tuple[str, ...], list[str]] = {}
    for name, entry in ENTRIES.items():
        entries.setdefault(entry.own, []).append(name)
    return "; ".join(f"{_keys(own)} ({', '.join(names)})" for own, names in entries.items() if own)


OTHERS = (
    Other(("version",), tuple(ENTRIES), REFUSED),
    Other(("order.megatron",), tuple(ENTRIES), REFUSED),
    Other(
        ("seq_len",), FRAMEWORKS, REFUSED,
        "The framework sets the sequence length; a different value of the key raises.",
    ),
    Other(LEARNED, (*SOURCES, *OWN_SCRIPTS), REFUSED, "Nothing there tells conceptloader when a step ends."),
    Other(
        ("tracks.*.layout: records",),
        (*MEGATRON, *NANOTRON, *HUGGING_FACE, "torchtitan", "OLMo-core"), REFUSED,
        "Records are Python objects, and the trainer moves tensors only.",
    ),
    Other(
        ("tracks.*.layout: ragged",), (*MEGATRON, "OLMo-core"), REFUSED,
        "The trainer needs tensors with one row per sample.",
    ),
    Other(
        ("outputs.shared_labels", "outputs.loss_mask", "outputs.ignore_index"), FRAMEWORKS, REFUSED,
        "The adapter sets these keys for the trainer's loss, which uses `loss_mask`, or in torchtitan labels of -100.",
    ),
    Other(
        ("outputs.loss_mask",), (*HUGGING_FACE, "OLMo-core"), SILENT,
        "The model gets no mask: labels without a loss are -100.",
    ),
    Other(
        ("outputs.ignore_index",), (*HUGGING_FACE, "OLMo-core"), SILENT,
        "Labels without a loss are -100 in any case.",
    ),
    Other(("outputs.position_ids: document",), MEGATRON, REFUSED, "Pass Megatron's `--reset-position-ids` instead."),
    Other(("outputs.position_ids: off",), MEGATRON, SILENT, "Megatron makes the position ids itself."),
    Other(
        ("outputs.position_ids: off",), (*NANOTRON, "torchtitan", "TRL"), REFUSED,
        "Raises only if the model takes position ids.",
    ),
    Other(
        ("outputs.cu_seqlens",), ("GrainSource",), REFUSED,
        "`cu_seqlens` describes a whole batch, and grain makes batches itself.",
    ),
    Other(("outputs.cu_seqlens",), MEGATRON, REFUSED, "Pass Megatron's `--dataloader-inter-document-masking` instead."),
    Other(
        tuple(f"outputs.{kind}, with a name that the entry uses" for kind in ("fields", "columns")), tuple(OWN_NAMES),
        REFUSED,
        f"The entry uses these names for other values, so no field or column may have them: {_own_names()}.",
    ),
    Other(
        tuple(f"loader.{name}" for name in READING), WITHOUT_THREADS, SAYS,
        "The trainer's DataLoader reads, in worker processes or in the training process: set its own options.",
    ),
    Other(
        ("loader.pin_memory",), tuple(ENTRIES), SAYS,
        "Tested without an accelerator. With one, the key has its effect if conceptloader makes the tensors.",
    ),
    Other(
        ("loader.balance",), (*SOURCES, *OWN_SCRIPTS), REFUSED,
        "conceptloader is not told which samples are a step's.",
    ),
    Other(
        ("loader.balance",), ("Megatron launcher",), REFUSED,
        "Raises without Megatron's `--dataloader-inter-document-masking`.",
    ),
    Other(("metrics",), (*SOURCES, *OWN_SCRIPTS), REFUSED, "Nothing there tells conceptloader when a step ends."),
)  # fmt: skip


def _other(row: str, entry: str) -> Other | None:
    return next((one for one in OTHERS if row.startswith(one.rows) and entry in one.entries), None)


def expected(row: str, entry: str) -> str:
    """The outcome of a cell."""
    other = _other(row, entry)
    return EFFECT if other is None else other.outcome


HEAD = """# Which key works where

<!-- Made by `python -m tests.entries.table --write`; do not edit it. -->

An *entry*, a column of the table, is a way to train: an adapter, or a name of `conceptloader` for your own loop.
The tests of this folder check each cell: they train with the key and without it.
[Configuration](../../docs/configuration.md) explains the keys.

- *yes*: the key has its effect. Batches equal those of the reader alone with the same configuration, and differ from
  those without the key. For keys that do not change batches, such as `metrics`, the tests check the effect itself.
- *raises*: training raises a `ConfigError` that names the key, before the first batch.
- *warns*: the key has no effect, and a warning at launch says so.
- *given*: the key has no effect, and needs none: the note says why.

{everywhere}
"""
TAKEN_OVER = "`order: {megatron: PATH}` resumes a run of Megatron-LM's own loader in Megatron-LM, and raises elsewhere."
UNSHOWN = ("version", "order.megatron")
WORDS = {EFFECT: "yes", REFUSED: "raises", SAYS: "warns", SILENT: "given"}


def page() -> str:
    """table.md."""
    shown = [row for row in ROWS if row not in UNSHOWN]
    everywhere = [row for row in shown if not any(_other(row, entry) for entry in ENTRIES)]
    rest = [row for row in shown if row not in everywhere]
    columns: dict[tuple[Other | None, ...], list[str]] = {}  # entries in which every key has the same outcome
    for entry in ENTRIES:
        columns.setdefault(tuple(_other(row, entry) for row in rest), []).append(entry)
    others = [other for row in zip(*columns, strict=True) for other in row if other]
    notes = [note for note in dict.fromkeys(other.note for other in others) if note]

    def word(other: Other | None) -> str:
        number = f" ({notes.index(other.note) + 1})" if other and other.note else ""
        return WORDS[other.outcome if other else EFFECT] + number

    titles = " | ".join(", ".join(entries) for entries in columns.values())
    lines = [f"| | {titles} |", f"| --- {'| --- ' * len(columns)}|"]
    cells = zip(rest, ([word(other) for other in row] for row in zip(*columns, strict=True)), strict=True)
    for (_, words), together in groupby(cells, lambda cell: (re.split("[.:]", cell[0])[0], cell[1])):
        lines.append(f"| {_keys(row for row, _ in together)} | {' | '.join(words)} |")
    numbered = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    first = f"Every entry has *yes* for {_keys(everywhere)}. {TAKEN_OVER}"
    return HEAD.format(everywhere=textwrap.fill(first, 120)) + "\n" + "\n".join(lines) + f"\n\n{numbered}\n"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("tests/entries/table.md is not what the table says: run `python -m tests.entries.table --write`")


if __name__ == "__main__":
    main()
