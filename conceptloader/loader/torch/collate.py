"""Batches of numpy arrays -> batches of tensors, without a copy."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch

from conceptloader.errors import ConfigError
from conceptloader.kernels.arrays import IntKey, TensorKey
from conceptloader.loader.batch.layout import Batch, BatchLayout, share

T = TypeVar("T")
Name = TypeVar("Name", bound=str)


class _PlainDict(type):
    """Of a class whose instances are plain dicts."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dict)


class TensorBatch(dict[str, Any], metaclass=_PlainDict):
    """A batch: a dict of tensors by name, see docs/batch-keys.md.

    To type checkers and editors its fixed keys, such as input_ids, have types; names of tracks, fields and columns give
    Any. At run time a batch is a plain dict, as pytrees and trainers know it, and TensorBatch(...) makes one, as
    dict(...) does.
    """

    # Not a TypedDict: checkers refuse keys that it does not name, and its use as a dict.
    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: TensorKey, /) -> torch.Tensor: ...
        @overload
        def __getitem__(self, key: IntKey, /) -> int: ...
        @overload  # a variable: editors complete the keys above, which `str` would contain
        def __getitem__(self, key: Name, /) -> Any: ...  # pyright: ignore[reportInvalidTypeVarUse]
        def __getitem__(self, key: str, /) -> Any: ...

    else:

        def __new__(cls, *args, **kwargs):
            return dict(*args, **kwargs)


def to_tensors(batch: Batch) -> TensorBatch:
    """Tensors over the memory of the batch's arrays: views of the block's own tensor if PyTorch allocated it.

    PyTorch knows by a tensor's storage which of its blocks a copy reads from. The storage of torch.from_numpy begins at
    the array, so that only the array at the start of a block would keep it from being used again during a copy.
    """
    tensors = TensorBatch()
    for name, value in batch.items():
        if "tokens" in batch and name in ("input_ids", "labels"):
            continue  # they share the tensor of `tokens`, not only its memory
        if isinstance(value, np.ndarray):
            owner: Any = value
            while isinstance(owner, np.ndarray):
                owner = owner.base
            tensor = as_tensor(value)
            if isinstance(owner, torch.Tensor):
                at = (value.__array_interface__["data"][0] - owner.data_ptr()) // value.itemsize
                whole = owner.untyped_storage()
                tensor = torch.empty(0, dtype=tensor.dtype).set_(whole, at, value.shape, tensor.stride())
            value = tensor
        tensors[name] = value
    return share(tensors) if "tokens" in tensors else tensors


def as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of an array, also of a type that numpy does not have."""
    kind: Any = array.dtype.metadata or {}
    name = kind.get("torch")
    tensor = torch.from_numpy(array)
    return tensor if name is None else tensor.view(getattr(torch, name))


def pinned_block(size: int) -> npt.NDArray[np.uint8]:
    """A block of pinned memory, so that `.to(device, non_blocking=True)` overlaps with work on the device.

    The memory is PyTorch's: a freed block is reused, but not before copies from any tensor of `to_tensors` over it
    have ended.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


def as_device(device: torch.device | str | None) -> torch.device:
    """The device of the tensors that are yielded. Raises ConfigError if it is absent, or neither a CPU nor CUDA."""
    try:
        found = torch.device(device or "cpu")
    except RuntimeError as error:
        raise ConfigError(
            "device",
            repr(device),
            f"cpu, cuda or cuda:0, cuda:1, ... ({error})",
            'pass device="cuda:0", or omit device',
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ConfigError("device", repr(device), "cpu or cuda", "omit device, and copy the batches yourself")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ConfigError(
            "device",
            f"{device!r}, but torch sees {count} CUDA devices here",
            "a device that exists",
            'omit device, or pass device="cpu"',
        )
    return found


def on_device(
    batches: Iterable[tuple[T, TensorBatch]], device: torch.device, as_read: bool = True
) -> Iterator[tuple[T, TensorBatch]]:
    """(task, batch) pairs with their tensors on a CUDA device, copied on a separate stream, one batch ahead.

    Each batch has new tensors there, and all later work on the current stream waits for their copy. as_read: if there
    is a tensor `tokens`, input_ids and labels are views of it.
    """
    make_stream: Any = torch.cuda.Stream
    stream = make_stream(device)
    waiting: deque[tuple[T, TensorBatch, Any]] = deque()
    for task, batch in batches:
        with torch.cuda.stream(stream):
            copied = TensorBatch(
                (name, value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value)
                for name, value in batch.items()
            )
            waiting.append((task, share(copied) if as_read and "tokens" in copied else copied, stream.record_event()))
        if len(waiting) > 1:
            yield _arrived(*waiting.popleft(), device)
    while waiting:
        yield _arrived(*waiting.popleft(), device)


def _arrived(task: T, batch: TensorBatch, copied: Any, device: torch.device) -> tuple[T, TensorBatch]:
    current = torch.cuda.current_stream(device)
    current.wait_event(copied)
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            value.record_stream(current)  # its memory is not used again before this stream is through with it
    return task, batch


class Rows(Sequence[TensorBatch]):
    """A batch of tensors that is also the sequence of its samples, as DataLoader's collate functions expect one."""

    def __init__(self, layout: BatchLayout, batch: TensorBatch) -> None:
        self.layout = layout
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["input_ids"])

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        if not -len(self) <= k < len(self):
            raise IndexError(f"sample {k} of a batch of {len(self)}")
        if whole := [row.name for row in self.layout.outputs.rows if "B" not in row.shape]:
            raise ConfigError(
                f"outputs.{whole[0]}",
                "samples taken out of their batch, which it describes",
                "whole batches",
                f"pass collate_fn=conceptloader.collate_fn to the DataLoader, or omit outputs.{whole[0]}",
            )
        return self.layout.sample(self.batch, k % len(self))


def collate_fn(samples: Sequence[dict[str, Any]]) -> TensorBatch:
    """`collate_fn` of a DataLoader over a SampleDataset: the batch as it was read, without another copy.

    Samples that were fetched individually are stacked, lists of records put into one list.

    Args:
        samples: What SampleDataset.__getitems__ returned, or a list of samples.

    Returns:
        The batch.
    """
    if isinstance(samples, Rows):
        return samples.batch
    lists = {name: [sample[name] for sample in samples] for name in samples[0] if isinstance(samples[0][name], list)}
    arrays = [{name: value for name, value in sample.items() if name not in lists} for sample in samples]
    return TensorBatch(torch.utils.data.default_collate(arrays), **lists)
