"""A corpus and a reader of it, importable in worker processes; as a script: a build that may be killed."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from conceptloader.integrations.datatrove_lib import ConceptStreamFinalize, ConceptStreamWriter

TASKS = 5
DOCUMENTS = 60


def record(number: int) -> dict[str, Any]:
    """Document `number` as a record of `conceptloader build`."""
    text = f"Dökument {number}: " + "wörd " * (number % 7)
    spans = [{"start": 0, "end": 8, "concepts": ["noun"]}, {"start": 9, "end": 11, "concepts": ["number", "noun"]}]
    return {"id": f"d{number}", "text": text, "spans": spans[: number % 3], "url": f"u{number}"}


class Reader(PipelineStep):
    """Every world_size-th document, with a pause before each."""

    name = "Reader"
    type = "READER"

    def __init__(self, pause: float = 0.0, bad: int | None = None) -> None:
        super().__init__()
        self.pause = pause
        self.bad = bad

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for number in range(rank, DOCUMENTS, world_size):
            time.sleep(self.pause)
            found = record(number)
            if number == self.bad:
                found["spans"] = [{"start": 0, "end": 999, "concepts": ["noun"]}]
            yield Document(found["text"], found["id"], metadata={"marks": found["spans"], "url": found["url"]})


def writer(out: Path, **options: Any) -> ConceptStreamWriter:
    given: dict[str, Any] = {
        "spans": {"concepts": "marks"},
        "vocabularies": {"concepts": ["noun", "number"]},
        "metadata": ["url"],
        **options,
    }
    return ConceptStreamWriter(out, "bytes", **given)


def build(folder: Path, workers: int, tasks: int = TASKS, reader: Reader | None = None, **options: Any) -> Path:
    """A build in folder/ds, with datatrove's logs in folder/logs."""
    out = folder / "ds"
    first = LocalPipelineExecutor(
        [reader or Reader(), writer(out, **options)],
        tasks=tasks,
        workers=workers,
        logging_dir=str(folder / "logs" / "write"),
        start_method="fork",
    )
    last = LocalPipelineExecutor(
        [ConceptStreamFinalize(out)], tasks=1, workers=1, logging_dir=str(folder / "logs" / "finalize"), depends=first
    )
    last.run()
    return out


if __name__ == "__main__":
    build(Path(sys.argv[1]), workers=2, reader=Reader(pause=float(sys.argv[2])))
