"""Blocks of memory come back when nobody can see them any more."""

import gc
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, get_context

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.batch.layout import ALIGNMENT, BatchMemory
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import Outputs
from tests.batch.cases import make_view, read
from tests.corpora.small import written


def address(array):
    return array.__array_interface__["data"][0]


SHAPE = (16, 32)  # of float64: a page


def kept(view):
    return lambda: np.asarray(view)


def in_storage(array):
    whole = torch.from_numpy(array).untyped_storage()
    return lambda: torch.empty(0, dtype=torch.float64).set_(whole, 0, SHAPE).numpy()


def saved_for_backward(array):
    """Nothing but the graph keeps the array, which is the gradient."""
    weights = torch.ones(SHAPE, dtype=torch.float64, requires_grad=True)
    loss = (weights * torch.from_numpy(array)).sum()
    return lambda: torch.autograd.grad(loss, weights)[0].numpy()


KEEP = {
    "array": kept,
    "slice": lambda array: kept(array[1:, ::2]),
    "row": lambda array: kept(array.T[3]),
    "other type": lambda array: kept(array.view(np.int64).reshape(-1).view(np.float64)),
    "broadcast": lambda array: kept(np.broadcast_to(array, (3, *SHAPE))),
    "frombuffer": lambda array: kept(np.frombuffer(array)),
    "memoryview": lambda array: kept(memoryview(array)[2:4]),
    "base": lambda array: (lambda base: lambda: base.view(np.float64))(array.base),
    "tensor": lambda array: kept(torch.from_numpy(array)),
    "row of a tensor": lambda array: kept(torch.from_numpy(array)[2, 1:]),
    "numpy of a tensor": lambda array: kept(torch.from_numpy(array)[1:].numpy()[:, 2]),
    "DLPack of an array": lambda array: kept(torch.from_dlpack(array)),
    "DLPack of a tensor": lambda array: kept(np.from_dlpack(torch.from_numpy(array))),
    "storage": in_storage,
    "autograd": saved_for_backward,
}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_what_is_kept_of_a_batch_does_not_change(keep):
    pool, held = BatchMemory(), []
    for k in range(60):
        block = pool.allocate(4096)
        array = np.ndarray(SHAPE, np.float64, block)
        array[:] = k
        del block
        held.append(keep(array) if k % 3 else None)  # of each third nothing is kept: there is memory to use again
        del array
    changed = [k for k, values in enumerate(held) if values is not None and not (values() == k).all()]
    assert changed == []
    held.clear()
    gc.collect()
    assert len(pool.free) == 40, "all that was kept is free now, and used again was what was not"


def test_memory_is_used_again_and_no_more_than_asked_for_is_kept():
    pool = BatchMemory(keep=2)
    assert len({address(pool.allocate(4096)) for _ in range(9)}) == 1
    blocks = [pool.allocate(size) for size in (4096, 4096, 64, 64, 1 << 22, 0)]
    where = [address(block) for block in blocks]
    assert not any(place % ALIGNMENT for place in where)
    assert [len(block) for block in blocks] == [4096, 4096, 64, 64, 1 << 22, 0]
    del blocks[0]
    assert address(pool.allocate(4096)) == where[0]
    blocks.clear()
    blocks = [pool.allocate(8192)]
    assert len(pool.free) < 2
    blocks.append(pool.allocate(8192))
    assert not pool.free, "what has a size that is not in use any more goes back to the system"
    with pytest.raises(MemoryError, match="micro_batch_size"):
        pool.allocate(1 << 62)
    with pytest.raises(MemoryError, match="micro_batch_size"):
        pool.allocate(1 << 70)


def test_no_interrupt_is_lost_where_a_block_ends():
    """Ctrl-C in a loop over batches: Python swallows it in callbacks of its garbage collector that are Python code."""
    pool, sent, seen, within = BatchMemory(), 0, 0, False

    def interrupt(*_):
        nonlocal sent
        if within:
            sent += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while sent < 300:
            try:
                within = True
                while sent < 300:
                    pool.allocate(64)
            except KeyboardInterrupt:
                within = False
                seen += 1
    finally:
        within = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == sent


def test_no_thread_gets_memory_that_another_one_uses():
    pool, shared = BatchMemory(keep=4), deque(maxlen=3)  # whoever appends to `shared` lets go of another one's block

    def work(number):
        wrong = 0
        for k in range(2000):
            block = pool.allocate(512 << k % 2)
            block[:] = number
            shared.append((number, block))
            wrong += not (block == number).all()
        return wrong + sum(not (block == owner).all() for owner, block in tuple(shared))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [0] * 4


def test_a_forked_process_writes_into_memory_of_its_own():
    pool = BatchMemory()
    kept, free = pool.allocate(4096), pool.allocate(4096)
    kept[:] = free[:] = 1
    where = address(free)
    del free

    def child(sender):
        kept[:] = 2
        block = pool.allocate(4096)
        block[:] = 3
        sender.send((address(block) == where, int(kept[0]), int(block[0])))

    receiver, sender = Pipe(duplex=False)
    process = get_context("fork").Process(target=child, args=(sender,))
    process.start()
    assert receiver.recv() == (True, 2, 3)
    process.join()
    assert process.exitcode == 0
    free = pool.allocate(4096)
    assert (address(free), int(free[0]), int(kept[0])) == (where, 1, 1)


def test_batches_that_are_alive_when_the_interpreter_ends_do_no_harm():
    program = """
import threading, time
import numpy as np
from conceptloader.batch.layout import ALIGNMENT, BatchMemory
pool = BatchMemory()
kept = [np.ndarray(8, np.int64, pool.allocate(64)) for _ in range(9)]
circle = [pool.allocate(64)]
circle.append(circle)
def work():
    while True:
        kept[:] = [pool.allocate(64) for _ in range(9)]
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ONES = np.float32([1, 2])
CHANGES = [
    *(("position_ids", where, values) for where in (0, 16, 31) for values in ([where + 1], [where - 1])),
    *(("position_ids", where, [where + 1, where]) for where in (0, 14, 30)),
    *(("loss_mask", where, [value]) for where in (0, 16, 31) for value in (0, -1, 2, np.nan, np.nextafter(*ONES))),
    ("loss_mask", 7, [0.5, 0.5]),
    ("loss_mask", 7, (~np.ones(1, np.float32).view(np.int32)).view(np.float32)),
]


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_written_into_a_batch_is_in_no_later_one(tmp_path, shared):
    """Positions and masks, which are the same in every batch, are left in memory that is used again."""
    path = written(tmp_path / "ds", *[[(range(80),)]] * 2)
    view = make_view("a", cl.open_dataset(path), 0, 0, 4, 32)
    reader = BatchReader(None, [view], decide_layout([view], 32, Outputs(shared_labels=shared), {}))
    blocks = set()
    for name, where, values in CHANGES:
        for row in range(4):  # the third lies in two shards
            batch = read(reader, *range(4))
            assert batch["position_ids"].tolist() == [list(range(32))] * 4, (name, where, values)
            assert batch["loss_mask"].tolist() == [[1.0] * 32] * 4, (name, where, values)
            blocks.add(address(batch["position_ids"]))
            batch[name][row, where : where + len(values)] = values
            del batch
    assert len(blocks) == 1, "it was the same memory"
