"""Pipeline steps for datatrove: views by selection and tables of many steps, a part a task."""

import os
from collections.abc import Iterable
from typing import Any

from datatrove.pipeline.base import PipelineStep

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError
from conceptloader.storage.durable import make_directories, write_file
from conceptloader.trace import open_run, trace_steps
from conceptloader.trace.select.views import Ask, select


class SelectWriter(PipelineStep):  # type: ignore[misc]
    """Finds what a task of any number of tasks finds; `SelectJoin`, with the same arguments, makes the views of it.

    dataset, out: directories that all tasks see. Raises, when run: as `select`.
    """

    name = "Select"
    type = "💾 - WRITER"

    def __init__(
        self,
        dataset: str | os.PathLike[str],
        out: str | os.PathLike[str],
        ask: Ask,
        roots: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self.dataset, self.out, self.ask = os.path.abspath(dataset), os.path.abspath(out), ask
        self.roots = None if roots is None else list(roots)

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        select(self.dataset, self.out, self.ask, roots=self.roots, task=(rank, world_size))


class SelectJoin(SelectWriter):
    """Makes the views: the one step of a pipeline with one task that depends on the others. Raises as they."""

    name = "Select: join"

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        if world_size != 1:
            raise ConfigError(f"join: found {world_size} tasks, expected one; give it an executor of its own")
        select(self.dataset, self.out, self.ask, roots=self.roots)


class TraceWriter(PipelineStep):  # type: ignore[misc]
    """Writes what is in the steps [first, stop) of a run to parquet files in `out`, one for each task, by steps.

    config, log: of the run, as in `open_run`. Raises, when run: as `trace_steps`.
    """

    name = "Trace of steps"
    type = "💾 - WRITER"

    def __init__(self, config: str, log: str, out: str, first: int, stop: int) -> None:
        super().__init__()
        self.config, self.log, self.out = (os.path.abspath(path) for path in (config, log, out))
        self.first, self.stop = first, stop

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        arrow, parquet = need("pyarrow", "trace"), need("pyarrow.parquet", "trace")
        low, high = (self.first + (self.stop - self.first) * k // world_size for k in (rank, rank + 1))
        if low == high:
            return
        make_directories(self.out)
        sink, writer = arrow.BufferOutputStream(), None
        for batch in trace_steps(open_run(self.config, self.log), low, high):
            writer = writer or parquet.ParquetWriter(sink, batch.schema)
            writer.write_batch(batch)
        assert writer is not None
        writer.close()
        write_file(os.path.join(self.out, f"{rank:05d}.parquet"), sink.getvalue().to_pybytes())
