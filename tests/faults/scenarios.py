"""Trainings and faults below it: what runs in a process of its own, and what comes back."""

import logging
import threading
from contextlib import contextmanager
from functools import cache
from itertools import islice
from types import SimpleNamespace
from unittest import mock

import numpy as np

import conceptloader as cl
from conceptloader.errors import ConceptloaderError
from conceptloader.storage import reads as io
from tests.faults.below import Blocks, Preads


@cache
def preads():
    """Those of this process. To be called before anything else that is here."""
    return Preads()


class Outcome(SimpleNamespace):
    """What a training was like. waited: seconds slept for between attempts, none of them really."""

    def __init__(self):
        super().__init__(batches=[], error="", errno=None, log=[], waited=[], reads=0, failed=[], short=0)


def train(
    config,
    faults=(),
    *,
    steps=6,
    undisturbed=0,
    damage=False,
    micro_batch_size=4,
):
    """Read batches of rank 1 of 2; faults begin once `undisturbed` of them have been read."""
    below = preads()
    below.begin([])
    with _watched() as outcome, _training(config, micro_batch_size) as loader:
        batches = iter(loader)
        _take(outcome, batches, undisturbed)
        below.begin([make_fault() for make_fault in faults], damage)
        _take(outcome, batches, steps - undisturbed)
    outcome.reads, outcome.failed, outcome.short = below.reads.total(), below.failed, below.short
    return outcome


def block(config, file, after, *, steps, until_logged):
    """Read number `after` of a file blocks, until that is logged, or else until it is an error and the loader is asked
    again. The read that did so is the second result."""
    fault = Blocks(file, after)
    preads().begin([fault])

    def seen(message):
        read = fault.blocked
        if until_logged and read is not None and f"offset {read.offset} of {read.path}" in message:
            fault.release.set()

    with _watched(seen) as outcome, _training(config, 4) as loader:
        try:
            _take(outcome, iter(loader), steps)
            if not until_logged:
                again = iter(loader)
                _take(outcome, again, 1)
                fault.release.set()
                _take(outcome, again, steps - len(outcome.batches))
        finally:
            fault.release.set()
    return outcome, fault.blocked


@contextmanager
def _training(config, micro_batch_size):
    """A loader, none of whose threads meets the faults of the next one."""
    with cl.make_dataloader(config, dp_rank=1, dp_size=2, micro_batch_size=micro_batch_size) as loader:
        yield loader
    for thread in threading.enumerate():
        if thread.name.startswith("conceptloader, "):
            thread.join()


def _take(outcome, batches, count):
    try:
        for batch in islice(batches, count):
            outcome.batches.append({name: np.asarray(value).tolist() for name, value in batch.items()})
    except ConceptloaderError as error:
        outcome.error, outcome.errno = str(error), getattr(error, "errno", None)


@contextmanager
def _watched(seen=bool):
    """Nothing sleeps; what is opened and logged is noted."""
    outcome = Outcome()

    class Handler(logging.Handler):
        def emit(self, record):
            outcome.log.append(record.getMessage())
            seen(record.getMessage())

    handler, logger = Handler(), logging.getLogger("conceptloader")
    logger.addHandler(handler)
    try:
        with (
            mock.patch.object(io, "sleep", outcome.waited.append),
            mock.patch.object(io, "faults", {}),
            mock.patch.object(io, "open_descriptor", preads().open),
        ):
            yield outcome
    finally:
        logger.removeHandler(handler)
