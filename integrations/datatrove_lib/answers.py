"""Pipeline steps for datatrove: views by selection, tables of many steps and of what was seen, a part a task."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from conceptloader.base.hashing import fingerprint
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError
from conceptloader.storage.durable import TEMPORARY, completed, make_directories
from conceptloader.storage.parquet import write_parquet
from conceptloader.trace import exposure, open_run, trace_steps
from conceptloader.trace.select.views import Ask, select

from .step import Directory, Step, Task


class SelectWriter(Step):
    """Finds what a task of any number of tasks finds; `SelectJoin`, with the same arguments, makes the views of it.

    dataset, out: directories that all tasks see. Raises, when run: as `select`.
    """

    name = "Select"

    def __init__(self, dataset: Directory, out: Directory, ask: Ask, roots: Iterable[str] | None = None) -> None:
        super().__init__()
        self.dataset, self.out, self.ask = os.path.abspath(dataset), os.path.abspath(out), ask
        self.roots = None if roots is None else list(roots)

    def work(self, task: Task | None) -> None:
        select(self.dataset, self.out, self.ask, roots=self.roots, task=task)


class SelectJoin(SelectWriter):
    """Makes the views: the one step of a pipeline with one task that depends on the others. Raises as they."""

    name, alone = "Select: join", "join"


class TableWriter(Step):
    """Writes a part of a table of a run, one for each task; `TableJoin` makes one parquet file, `out`, of them.

    config, log: of the run, as in `open_run`. out: of a directory that all tasks see; the parts are in `out`.parts.
    """

    def __init__(self, config: str, log: str, out: str) -> None:
        super().__init__()
        self.config, self.log, self.out = (os.path.abspath(path) for path in (config, log, out))

    def batches(self, task: Task) -> Iterable[Any]:
        """Record batches or tables of a part: k, of how many."""
        raise NotImplementedError

    def joined(self, batches: Iterator[Any]) -> Iterable[Any]:
        """Those of the table, of those of its parts in order."""
        return batches

    def work(self, task: Task | None) -> None:
        rank, tasks = task or (0, 1)
        parts = f"{self.out}.parts"
        make_directories(parts)
        with completed(f"{parts}/{rank:05d}-of-{tasks:05d}.arrow") as temporary:
            _write_arrow(self.batches((rank, tasks)), temporary, {"asked": self.asked})

    @property
    def asked(self) -> str:
        """Of its arguments, which parts remember."""
        return fingerprint([self.name, {key: value for key, value in vars(self).items() if key != "stats"}])


def _write_arrow(batches: Iterable[Any], path: str, note: dict[str, str]) -> None:
    """What comes back as it was, which parquet does not promise of a schema."""
    arrow: Any = need("pyarrow", "table: found no pyarrow package, which makes it")
    writer = None
    for batch in batches:
        writer = writer or arrow.ipc.new_file(path, batch.schema.with_metadata(note))
        writer.write(batch)
    assert writer is not None  # the writers give one batch at least
    writer.close()


class TraceWriter(TableWriter):
    """What is in the steps [first, stop) of a run, a part of the steps a task. Raises, when run: as `trace_steps`."""

    name = "Trace of steps"

    def __init__(self, config: str, log: str, out: str, first: int, stop: int) -> None:
        super().__init__(config, log, out)
        self.first, self.stop = first, stop

    def batches(self, task: Task) -> Iterable[Any]:
        if task[1] > self.stop - self.first:
            raise ConfigError(
                f"trace: found {task[1]} tasks for {self.stop - self.first} steps, expected one a step at most"
            )
        low, high = (self.first + (self.stop - self.first) * k // task[1] for k in (task[0], task[0] + 1))
        return trace_steps(open_run(self.config, self.log), low, high)


class ExposureWriter(TableWriter):
    """How often documents or concepts were seen before step `until`: see `conceptloader.trace.exposure`.

    by: "document" or "concept", of `track`. checkpoints: steps after which one was saved, rising. Raises, when run: as
    `exposure`.
    """

    name = "Exposure"

    def __init__(
        self,
        config: str,
        log: str,
        out: str,
        until: int,
        by: Literal["document", "concept"] = "document",
        track: str = "concepts",
        checkpoints: Sequence[int] = (),
    ) -> None:
        super().__init__(config, log, out)
        self.until, self.by, self.track, self.checkpoints = until, by, track, tuple(checkpoints)

    def batches(self, task: Task) -> Iterable[Any]:
        seen = exposure(open_run(self.config, self.log), self.until)
        if self.by == "document":
            return seen.document_batches(checkpoints=self.checkpoints, part=task)
        return [seen.concepts(self.track, part=task)]

    def joined(self, batches: Iterator[Any]) -> Iterable[Any]:
        if self.by == "document":
            return batches
        tables = [need("pyarrow", "exposure").Table.from_batches([batch]) for batch in batches]
        added: list[Any] = exposure(open_run(self.config, self.log), 0).add_concepts(tables).to_batches()
        return added


class TableJoin(Step):
    """Makes the file of what the tasks of a TraceWriter or an ExposureWriter wrote, the same bytes for any number of
    them: the one step of a pipeline with one task that depends on theirs.

    Raises, when run: ConfigError unless all parts of one number of tasks are there; what the writer raises.
    """

    name, alone = "Table: join", "join"

    def __init__(self, writer: TableWriter) -> None:
        super().__init__()
        self.writer = writer

    def work(self, task: Task | None) -> None:
        directory = f"{self.writer.out}.parts"
        if os.path.exists(self.writer.out) and not os.path.exists(directory):
            return  # it was joined before
        found = sorted(name for name in os.listdir(directory) if name.endswith(".arrow"))
        tasks = len(found)
        if not found or found != [f"{k:05d}-of-{tasks:05d}.arrow" for k in range(tasks)]:
            raise ConfigError(
                f"{directory}: found {', '.join(found[:4]) or 'nothing'}{', ...' * (tasks > 4)}, expected each part of "
                "one number of tasks; run the writer's pipeline to its end, or remove the directory and run it again"
            )
        arrow = need("pyarrow", "table: found no pyarrow package, which makes it")
        with contextlib.ExitStack() as stack:
            parts = [stack.enter_context(arrow.memory_map(os.path.join(directory, name))) for name in found]
            files = [arrow.ipc.open_file(part) for part in parts]
            if any((file.schema.metadata or {}).get(b"asked") != self.writer.asked.encode() for file in files):
                raise ConfigError(
                    f"{directory}: found parts of a table that was asked for with other arguments, expected those of "
                    "this one; remove the directory and run the writer's pipeline again, all of its tasks"
                )
            batches = (file.get_batch(k) for file in files for k in range(file.num_record_batches))
            plain = (batch.replace_schema_metadata(None) for batch in batches)
            write_parquet(self.writer.joined(plain), stack.enter_context(completed(self.writer.out)))
        for name in os.listdir(directory):
            if name in found or TEMPORARY.fullmatch(name):
                os.unlink(os.path.join(directory, name))
        with contextlib.suppress(OSError):  # files that are not ours keep it
            os.rmdir(directory)
