"""A small build to be interrupted, in child processes that die when and where a test says."""

import json
import os
import signal
import time
import traceback

import numpy as np

from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import find_sources


def write_input(path, documents=60):
    """jsonl with tokens and spans."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(documents):
            size = int(rng.integers(1, 40))
            spans = [{"start": 0, "end": size // 2, "concepts": ["a", "b"]}] if size > 1 else []
            record = {"id": f"d{number}", "tokens": rng.integers(0, 500, size).tolist(), "spans": spans}
            file.write(json.dumps(record) + "\n")
    return path


def build(source, out, shard_bytes=2500, workers=1):
    """The build; it takes up what an earlier call has left."""
    columns = Columns(text=None, tokens="tokens", tracks={"concepts": "spans"})
    names = {"concepts": ["a", "b"]}
    options = Options(columns=columns, vocab_size=500, eos=1, vocabulary=names, shard_input_bytes=shard_bytes)
    build_dataset(find_sources([source]), out, options, workers=workers)


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def finished_shards(directory):
    """Identity (inode, time of modification) of every file of a shard that is declared finished."""
    if not directory.exists():
        return {}
    names = [file.name.split(".")[0] for file in directory.glob("*.shard.json")]
    files = [file for name in names for file in directory.glob(f"{name}.*")]
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def child(action, kill_after_s=None):
    """Run `action` in a forked process, killed after a time. Returns: whether it ended by itself, without error."""
    process = os.fork()
    if not process:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed by itself"
    return not os.WIFSIGNALED(status)


def killing_at(operation):
    """Let this process die just before its `operation`-th call that changes a directory or syncs."""
    left = operation

    def counted(real):
        def call(*args, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    def install():
        for name in ("fsync", "rename", "link", "unlink", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))

    return install
