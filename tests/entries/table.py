"""What is expected of each cell: the table that the tests run, and that docs/entries.md is made from.

python -m tests.entries.table            fails unless the page is what the table says
python -m tests.entries.table --write    writes it
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.entries.drivers import ENTRIES
from tests.entries.rows import EFFECT, REFUSED, ROWS, SAYS, SILENT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "entries.md"


@dataclass(frozen=True)
class Other:
    """Cells in which a key does not have its effect.

    rows: by the beginning of their keys. outcome: SILENT only where there is nothing to do, as `note` says, which is
    shown below the table.
    """

    rows: tuple[str, ...]
    entries: Collection[str]
    outcome: str
    note: str = ""


MEGATRON = ("Megatron launcher", "Megatron own script")
NANOTRON = ("nanotron YAML", "nanotron own script")
FRAMEWORKS = (*MEGATRON, *NANOTRON, "torchtitan", "Bridge")
HUGGING_FACE = ("Hugging Face", "TRL")
SOURCES = ("SampleDataset", "GrainSource", "Bridge", "Automodel")
OWN_SCRIPTS = ("Megatron own script", "nanotron own script")
WITHOUT_THREADS = (*SOURCES, *MEGATRON, *NANOTRON)
READING = ("num_threads", "prefetch_batches", "prefetch_bytes", "warn_after_s", "timeout_s")
LEARNED = ("mixing: odm", "mixing: doremi", "mixing: module:Class", "mixing: file")

OTHERS = (
    Other(("version",), ENTRIES, REFUSED),
    Other(("megatron_cache",), ENTRIES, REFUSED),
    Other(("seq_len",), FRAMEWORKS, REFUSED, "The framework's own sequence length holds: a different one raises."),
    Other(LEARNED, (*SOURCES, *OWN_SCRIPTS), REFUSED, "Nothing there tells conceptloader of the steps."),
    Other(
        ("mixing: doremi, apply: loss",), ("Megatron launcher", "nanotron YAML", *HUGGING_FACE), REFUSED,
        "The trainer computes the loss.",
    ),
    Other(
        ("datasets.*.allow_pickle", "tracks.*.layout: records"), (*MEGATRON, *NANOTRON, "torchtitan"), REFUSED,
        "Records are Python objects, and the trainer moves tensors only.",
    ),
    Other(("tracks.*.layout: ragged",), (*MEGATRON, "OLMo-core"), REFUSED, "The trainer takes a row for each sample."),
    Other(("outputs.shared_labels", "outputs.loss_mask", "outputs.ignore_index"), FRAMEWORKS, REFUSED),
    Other(
        ("outputs.loss_mask",), (*HUGGING_FACE, "OLMo-core"), SILENT,
        "The model gets labels with -100 and no mask.",
    ),
    Other(
        ("outputs.ignore_index",), (*HUGGING_FACE, "OLMo-core", "Automodel"), SILENT,
        "Labels without a loss are -100 in any case.",
    ),
    Other(("outputs.position_ids: document",), MEGATRON, REFUSED, "`--reset-position-ids` says it."),
    Other(("outputs.position_ids: off",), MEGATRON, SILENT, "Megatron makes its own positions."),
    Other(
        ("outputs.position_ids: document",), ("OLMo-core",), REFUSED,
        "Models of OLMo-core take no positions; `outputs.cu_seqlens` separates documents.",
    ),
    Other(("outputs.position_ids: off",), (*NANOTRON, "torchtitan"), REFUSED, "Where the model takes positions."),
    Other(("outputs.cu_seqlens",), ("GrainSource",), REFUSED, "It is of a batch, and grain makes batches itself."),
    Other(("outputs.cu_seqlens",), MEGATRON, REFUSED, "`--dataloader-inter-document-masking` says it."),
    Other(("outputs.loss_weight",), ("Automodel",), REFUSED, "Its losses take no weights."),
    Other(
        ("outputs.fields, of an entry's own name",), [name for name, entry in ENTRIES.items() if entry.own], REFUSED,
        "A field may not have a name that the entry gives to something else: "
        + "; ".join(f"{name}: {', '.join(f'`{own}`' for own in entry.own)}" for name, entry in ENTRIES.items() if entry.own)
        + ".",
    ),
    Other(
        tuple(f"loader.{name}" for name in READING), WITHOUT_THREADS, SAYS,
        "The trainer's DataLoader reads, in worker processes or in the training process: set its own options.",
    ),
    Other(("loader.pin_memory",), ENTRIES, SAYS, "Without an accelerator; with one, where conceptloader's loader reads."),
    Other(
        ("loader.batch_log",), (*WITHOUT_THREADS, "Lightning", *HUGGING_FACE, "OLMo-core"), REFUSED,
        "There `conceptloader.trace.BatchRecorder` records what is trained.",
    ),
    Other(("metrics",), (*SOURCES, *OWN_SCRIPTS), REFUSED, "Nothing there tells conceptloader of the steps."),
)  # fmt: skip


def _other(row: str, entry: str) -> Other | None:
    return next((one for one in OTHERS if row.startswith(one.rows) and entry in one.entries), None)


def expected(row: str, entry: str) -> str:
    """The outcome of a cell."""
    other = _other(row, entry)
    return EFFECT if other is None else other.outcome


HEAD = """# Which key works where

Made by `python -m tests.entries.table --write` from the table that [tests](../tests/entries) run; nobody edits it. Each cell is a training of that entry with the key and one without.

- *yes*: the key has its effect. Batches equal those of the plain reader under the same configuration, and differ from those without the key; keys about running have another effect that is compared.
- *raises*: a `ConfigError` that names the key, before the first batch.
- *warns*: the key has no effect there, and a warning says so at the start.
- *given*: there is nothing to do, see the note.

No key is without an effect silently. [Configuration](configuration.md) says what each key means.
"""
UNSHOWN = ("version", "megatron_cache")
WORDS = {EFFECT: "yes", REFUSED: "raises", SAYS: "warns", SILENT: "given"}


def columns() -> list[list[str]]:
    """Entries in which every key has the same outcome, and the same note."""
    found: dict[tuple[object, ...], list[str]] = {}
    for entry in ENTRIES:
        found.setdefault(tuple(_other(row, entry) for row in ROWS), []).append(entry)
    return list(found.values())


def page() -> str:
    """docs/entries.md."""
    groups, notes = columns(), list[str]()
    lines = [f"| | {' | '.join(', '.join(group) for group in groups)} |", f"| --- {'| --- ' * len(groups)}|"]

    def shown(row: str, entry: str) -> str:
        other = _other(row, entry)
        if other is None or not other.note:
            return WORDS[expected(row, entry)]
        if other.note not in notes:
            notes.append(other.note)
        return f"{WORDS[other.outcome]} ({notes.index(other.note) + 1})"

    rows = [(row.split(".")[0].split(":")[0], row) for row in ROWS if row not in UNSHOWN]
    cells = [(key, row, [shown(row, group[0]) for group in groups]) for key, row in rows]
    for (_, found), together in groupby(cells, lambda cell: (cell[0], cell[2])):
        keys = ", ".join(f"`{row}`" for _, row, _ in together)
        lines.append(f"| {keys} | {' | '.join(found)} |")
    numbered = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    more = "`order: megatron` with `megatron_cache` takes over a run of Megatron-LM's own loader, in Megatron-LM only."
    return f"{HEAD}\n" + "\n".join(lines) + f"\n\n{numbered}\n\n{more}\n"


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/entries.md is not what the table says: run `python -m tests.entries.table --write`")


if __name__ == "__main__":
    main()
