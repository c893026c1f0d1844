"""Tasks in worker processes: progress, errors of the tasks, death of a worker or of the parent."""

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from conceptloader.errors import ConceptloaderError

Tell = Callable[[Any], None]  # called by a task now and then, with what can be pickled
Task = Callable[[Any, Tell], Any]


def run_tasks(
    task: Task,
    arguments: Sequence[Any],
    workers: int,
    on_news: Callable[[int, Any], None],
    on_end: Callable[[int, Any, Exception | None], None],
) -> None:
    """`task(argument, report)` for each argument, on `workers` spawned processes; with one worker, in this process.

    on_news(i, news) is called for what task i reports, on_end(i, result, error) when it has returned or raised a
    ConceptloaderError; the others continue. Any other exception of a task ends the whole run.

    A worker whose parent is gone ends at its next report. On an exception here, Ctrl-C included, all workers are
    killed. Raises: ConceptloaderError if a worker dies.
    """
    if workers <= 1 or len(arguments) <= 1:
        for i, argument in enumerate(arguments):
            try:
                result = task(argument, partial(on_news, i))
            except ConceptloaderError as error:
                on_end(i, None, error)
            else:
                on_end(i, result, None)
        return
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[Any, int]] = {}
    waiting = iter(range(len(arguments)))
    processes: list[Any] = []
    try:
        for _ in range(min(workers, len(arguments))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, task), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            _next(ours, process, waiting, arguments, running)
        while running:
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, i = running[ready]
                try:
                    kind, content = ready.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    raise ConceptloaderError(
                        f"worker process {process.pid}",
                        f"exit code {process.exitcode} in task {i} (killed, or out of memory?)",
                        "exit code 0",
                        "run the same command again: a build, join or index keeps what is finished",
                    ) from None
                if kind == "news":
                    on_news(i, content)
                    continue
                if kind == "crash":
                    raise RuntimeError(f"worker process {process.pid}, task {i}:\n{content}")
                del running[ready]
                on_end(i, *content)
                _next(ready, process, waiting, arguments, running)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def run_all(task: Task, arguments: Sequence[Any], workers: int, on_end: Callable[[int, bool], None]) -> None:
    """`run_tasks` for tasks without news. on_end(i, whether task i succeeded). Raises: the first error, at the end."""
    errors: list[Exception] = []

    def note(i: int, _: object, error: Exception | None) -> None:
        errors.extend([] if error is None else [error])
        on_end(i, error is None)

    run_tasks(task, arguments, workers, lambda *_: None, note)
    if errors:
        raise errors[0]


def _next(
    connection: Connection, process: Any, waiting: Any, arguments: Sequence[Any], running: dict[Any, Any]
) -> None:
    i = next(waiting, None)
    if i is not None:
        running[connection] = (process, i)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed: the next `recv` tells
            connection.send(arguments[i])


def _work(connection: Connection, task: Task) -> None:
    """What a worker process does until the pipe closes or it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        while True:
            argument = connection.recv()
            try:
                result = task(argument, lambda news: connection.send(("news", news)))
            except ConceptloaderError as error:
                connection.send(("end", (None, error)))
            except (BrokenPipeError, EOFError):
                return
            except Exception:
                connection.send(("crash", traceback.format_exc()))
            else:
                connection.send(("end", (result, None)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
