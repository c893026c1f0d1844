"""The state in a checkpoint of any trainer, without its classes and without unpickling: one string that proves itself.

Trainers save the state as JSON, within pickles, zip archives that store and files of torch.distributed.checkpoint. All
of them keep a string in one piece, so that its first key is looked for, and its checksum says that it is whole.
"""

import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conceptloader.errors import ResumeError
from conceptloader.order.progress.state import OrderState
from conceptloader.storage.reads import named

_PLAIN, _WITHIN_JSON = b'{"checksum":"', rb'"{\"checksum\":\"'
_LONGEST = 1 << 24
_LARGE = 1 << 26  # files of weights: read only if no smaller file has a state


def find_state(checkpoint: str | os.PathLike[str]) -> dict[str, str]:
    """The state of the loader in a checkpoint of any trainer, for `load_state_dict`.

    Args:
        checkpoint: Directory or file of one checkpoint, as the trainer wrote it.

    Returns:
        What `state_dict` had returned.

    Raises:
        ResumeError: There is none, or there are several that differ.
    """
    return locate_state(checkpoint)[1].leaf()


def locate_state(checkpoint: str | os.PathLike[str]) -> tuple[Path, OrderState]:
    """The file that has the state of a checkpoint, and the state; see find_state."""
    found: dict[str, tuple[Path, OrderState]] = {}
    for path in _files(Path(checkpoint)):
        if found and path.stat().st_size > _LARGE:
            break
        for fields in _states(path):
            state = OrderState.read(fields, str(path))
            found.setdefault(state.leaf().popitem()[1], (path, state))
    where = str(checkpoint)
    if not found:
        raise ResumeError(
            where,
            "no file with a state of conceptloader",
            "a checkpoint with a state",
            "pass the directory of one checkpoint that has a state of conceptloader",
        )
    if len(found) > 1:
        listed = "; ".join(f"{path}: {state.consumed} samples" for path, state in found.values())
        raise ResumeError(
            where,
            f"{len(found)} states that differ ({listed})",
            "a single state",
            "pass the directory or file of one of them to find_state",
        )
    return found.popitem()[1]


def to_continue(checkpoint: str) -> OrderState:
    """The state from which another trainer resumes a run, which counts samples and steps from 0 again.

    Raises ResumeError if it was saved within a step, whose gradients no other trainer has.
    """
    state = locate_state(checkpoint)[1]
    kept = {key: value for key, value in state.more.items() if key == "mixing"}
    return replace(state, more={**kept, "count_start": state.between_steps(f"continue_from {checkpoint}")})


def _files(path: Path) -> list[Path]:
    """Of a checkpoint, smallest first."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ResumeError(
            str(path),
            "no such directory or file",
            "a local checkpoint",
            f"run `ls {path}`: the path may be misspelled, or its disk not mounted",
        )
    with named(str(path), "looked into"):
        files = (file for file in path.rglob("*") if file.is_file())
        return sorted(files, key=lambda file: (file.stat().st_size, file))


def _states(path: Path) -> Iterator[dict[str, Any]]:
    """What begins like a state in the bytes of a file, except those of samplers."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for mark in (_PLAIN, _WITHIN_JSON):
                at = data.find(mark)
                while at >= 0:
                    fields = _parse(data[at : at + _LONGEST])
                    if "spec" in fields:
                        yield fields
                    at = data.find(mark, at + len(mark))


def _parse(data: bytes) -> dict[str, Any]:
    """The object at the beginning of `data`, as it is or as a JSON string of it; {} if it is none."""
    try:
        value, _ = json.JSONDecoder().raw_decode(data.decode("ascii", "replace"))
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
