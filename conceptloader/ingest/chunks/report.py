"""What a join found: counts of chunks, and of what became of them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from conceptloader.base.terminal import counted
from conceptloader.errors import InputError

EXAMPLES = 20


@dataclass
class Joined:
    """files: parquet with the documents and their `spans`.

    chunks: rows that were read; annotated: those that became spans; by_status: of the others, those that say so.
    missing: boundaries without a row. `damaged`: documents that say so. wrong: by what is wrong, those left without
    annotation; examples: some of them.
    """

    files: list[str]
    chunks: int = 0
    annotated: int = 0
    missing: int = 0
    damaged: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, report: dict[str, Any]) -> None:
        self.chunks += report.get("chunks", 0)
        self.annotated += report.get("annotated", 0)
        self.missing += report.get("missing", 0)
        self.damaged += report.get("damaged", 0)
        self.by_status.update(report.get("by_status", {}))
        self.wrong.update(report["wrong"])
        self.examples = (self.examples + report.get("examples", []))[:EXAMPLES]

    def to_json(self) -> dict[str, Any]:
        """The counts, as `add` takes them."""
        counts = {name: getattr(self, name) for name in ("chunks", "annotated", "missing", "damaged")}
        return counts | {name: dict(sorted(getattr(self, name).items())) for name in ("by_status", "wrong")}

    def lines(self) -> list[str]:
        """For people."""
        found = [f"{self.chunks:,} chunks, {self.annotated:,} of them annotated"]
        found += [f"{n:,} chunks have status {status!r}: not annotated" for status, n in sorted(self.by_status.items())]
        found += [f"{self.missing:,} chunks of documents have no row: not annotated"] if self.missing else []
        found += [f"{counted(self.damaged, 'document')} said to have errors in the chunks"] if self.damaged else []
        found += [f"{n:,} {what}: not annotated" for what, n in sorted(self.wrong.items())]
        return found + [f"  {example}" for example in self.examples]


def require_right(report: dict[str, Any], wrong: str) -> None:
    """wrong: see `Chunks`. Of a task, also of one that ended when what is wrong was allowed. Raises: InputError."""
    if report["wrong"] and wrong == "error":
        found = ", ".join(f"{number:,} {what}" for what, number in report["wrong"].items())
        raise InputError(
            report["examples"][0],
            str(found),
            "files without such a fault (this is the first)",
            "correct the files, or leave what is wrong without annotation, counted (chunks: {wrong: unannotated}), and "
            "listed (--bad-records FILE)",
        )
