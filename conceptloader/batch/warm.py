"""Compiled code that is not there yet: plain batches meanwhile, and how it comes.

Compiling takes a hundred times as long as opening a run and reading its first batch. So where the cache lacks something
the plain engine begins, whose batches are the same; after its first batch a thread has a process of its own compile
what is missing, since a thread would take the interpreter from the training, and loads it.
"""

import atexit
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conceptloader.base.lazy import forks_wait
from conceptloader.base.packages import python_like_this
from conceptloader.batch.layout import Allocate, Batch, BatchLayout
from conceptloader.batch.plain import ReferenceReader
from conceptloader.batch.reader import BatchReader, Order, Picked, U64Array
from conceptloader.blend import Outputs, View
from conceptloader.blend.samples import kind_of
from conceptloader.order.mixture import Mixture
from conceptloader.order.permutation import Permutation, load_kernels
from conceptloader.storage.threads import Task, shared_threads

if TYPE_CHECKING:
    from conceptloader.batch.compiled import CompiledReader

logger = logging.getLogger(__name__)

_CHILD = "from conceptloader.batch.warm import compile_for_parent; compile_for_parent()"


def open_engine(order: Order, views: Sequence[View | None], layout: BatchLayout, dp_rank: int = 0) -> BatchReader:
    """The compiled reader, or one that becomes it."""
    global _packs, _loaded, _loading
    if not _packs and any(view is not None and kind_of(view) == "pack" for view in views):
        _packs, _loaded, _loading = True, False, None
    if _loaded or _loads():
        return _compiled_reader(order, views, layout, dp_rank)
    return StartingReader(order, views, layout, dp_rank)


class StartingReader:
    """Plain batches until compiled code is loaded, then compiled ones. See BatchReader; a batch is of one engine."""

    def __init__(self, order: Order, views: Sequence[View | None], layout: BatchLayout, dp_rank: int) -> None:
        self.layout = layout
        self._plain = ReferenceReader(order, views, layout, dp_rank)
        self._compiled: CompiledReader | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return open_engine, (self._plain.order, self._plain.views, self.layout, self._plain.dp_rank)

    def read(self, samples: U64Array, allocate: Allocate | None = None, picked: Picked | None = None) -> Batch:
        """See BatchReader. Also raises what kept compiled code from being loaded."""
        if _ready():
            return self._take_over().read(samples, allocate, picked)
        batch = self._plain.read(samples, allocate, picked)
        _begin()  # not before: the first batch shares the interpreter with nobody
        return batch

    def _take_over(self) -> "CompiledReader":
        plain = self._plain
        made = _compiled_reader(plain.order, plain.views, self.layout, plain.dp_rank or 0)
        with forks_wait:
            if self._compiled is None:  # no thread was faster
                made.follow(plain.order)
                self._compiled = made
                self.read = made.read  # type: ignore[method-assign]  # from now on nothing lies in between
                if not plain.dp_rank:
                    logger.info("loader: batches are read by compiled code from now on")
            return self._compiled

    def follow(self, order: Order) -> None:
        """See BatchReader."""
        with forks_wait:
            self._plain.follow(order)
            if self._compiled is not None:
                self._compiled.follow(order)

    def where(self, thread: int) -> str:
        """See BatchReader."""
        plain = self._plain.where(thread)
        return plain if self._compiled is None or plain != "nothing" else self._compiled.where(thread)


def _compiled_reader(*arguments: Any) -> "CompiledReader":
    with forks_wait:
        from conceptloader.batch.compiled import CompiledReader
    return CompiledReader(*arguments)


def load_engine() -> None:
    """Load what reads batches, or compile it, now; readers that are opened afterwards begin with it."""
    global _loaded
    reader = _compiled_reader(Mixture([1]), [None], BatchLayout(seq_len=8, outputs=Outputs()))
    with forks_wait:  # in here nothing waits for another lock, which a fork may hold while it waits for this one
        load_kernels()
        reader.load(_packs)
    _loaded = True


def warm_up() -> list[str]:
    """Compile all that is not in the cache yet, for an installation, an image or a prologue. Returns: the directories
    of the cache, the one that is written to first."""
    from conceptloader.base.compiled.cache import cache_directories

    global _packs
    _packs = True
    load_engine()
    permutation, none = Permutation(1 << 20), np.zeros(0, np.uint64)
    permutation.inverse_many(permutation.forward_many(none))
    permutation.inverse(permutation.forward(0))
    Mixture([2, 2]).indices_of_windows(0, 0, [0])
    return cache_directories()


# ---- what goes on beside the first batches

_PATIENCE_S = 900.0  # with another process that compiles, while batches are plain
_loaded = False
_packs = False  # whether a reader of packs was opened: their kernel takes as long to compile again
_loading: Task[None] | None = None
_child: "subprocess.Popen[bytes] | None" = None
_ending = False


def _ready() -> bool:
    """Whether the compiled reader can be used. Raises what went wrong with it."""
    if not _loaded and _loading is not None and _loading.error is not None:
        raise _loading.error
    return _loaded


def _begin() -> None:
    global _loading
    if _loading is None:  # two threads that are here at once submit it twice; it then runs once after the other
        _loading = shared_threads("conceptloader, compiled code", 1).submit(_load)


def _load() -> None:
    if _loaded:
        return
    with forks_wait:
        from conceptloader.base.compiled import cache
    if _loads():
        return
    with cache.one_of_a_machine(f"compiles into {cache.cache_directories()}", _PATIENCE_S):
        if not _loads():  # still: no other process of this machine did it meanwhile
            _compile_beside()
            if not _ending and not _loads():
                load_engine()


def _loads() -> bool:
    from conceptloader.base.compiled.cache import NotCompiledError, only_loading

    try:
        with only_loading():
            load_engine()
    except NotCompiledError:
        return False
    return True


def _compile_beside() -> None:
    """Have a process fill the cache, and log what it says. It ends with this one, whose end of a pipe then closes."""
    global _child
    logger.info("loader: batches are read by the plain engine until compiled code is there")
    command, pipe = [*python_like_this(_CHILD), *["packs"] * _packs], subprocess.PIPE
    try:
        _child = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, start_new_session=True)
    except OSError as error:
        failed = str(error)
    else:
        assert _child.stderr is not None
        for line in _child.stderr:
            if not _ending:
                logger.warning("%s", line.decode(errors="replace").rstrip())
        failed = f"exit code {_child.returncode}" if _child.wait() else ""
    if failed and not _ending:
        logger.warning("no process could compile the reader (%s): a thread does, beside the training", failed)


def compile_for_parent() -> None:
    """What the process of `_compile_beside` does, unless the other end of its stdin is closed first."""

    def watch() -> None:
        os.read(0, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    global _packs
    _packs = sys.argv[1:] == ["packs"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=watch, daemon=True).start()
    load_engine()


@atexit.register
def _end() -> None:
    global _ending
    _ending = True
    if _child is not None and _child.stdin is not None:
        with contextlib.suppress(OSError):
            _child.stdin.close()


def _after_fork() -> None:
    """A forked child has none of its parent's threads: what one was loading is begun anew."""
    global _loading
    if not _loaded:
        _loading = None


os.register_at_fork(after_in_child=_after_fork)
