"""torch.cuda and NCCL played by the CPU and gloo, as far as nanotron asks for them."""

import contextlib
import os
import sys
import time
import types

import torch
import torch.distributed as dist
from torch.utils import collect_env

CPU = torch.device("cpu")
FACTORIES = (
    *("empty", "zeros", "ones", "full", "tensor", "as_tensor", "arange", "linspace", "eye", "empty_strided"),
    *("rand", "randn", "randint", "randperm", "empty_like", "zeros_like", "ones_like", "full_like", "randn_like"),
)


def install():
    """Patch torch in this process. To be called before nanotron is imported."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    os.environ.setdefault("WANDB_MODE", "disabled")
    torch.set_num_threads(1)
    _devices()
    _cuda_module()
    _collectives()


def _cpu(device):
    name = device.type if isinstance(device, torch.device) else device
    return CPU if isinstance(name, str) and name.split(":")[0] == "cuda" else device


def _devices():
    """`device="cuda"` means the CPU. Wrapped one by one: a TorchFunctionMode is switched off inside Tensor.backward."""

    def on_cpu(factory):
        def wrapped(*args, **kwargs):
            if "device" in kwargs:
                device = kwargs["device"]
                kwargs["device"] = CPU if type(device) is int else _cpu(device)
            return factory(*args, **kwargs)

        wrapped.__name__ = wrapped.__qualname__ = getattr(factory, "__name__", "factory")
        return wrapped

    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))

    real_to = torch.Tensor.to

    def to(self, *args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        moved = real_to(self, *map(_cpu, args), **kwargs)
        # A copy to a GPU lays a tensor out anew; on the CPU .to() would hand back the strided original.
        return moved.contiguous() if kwargs.get("memory_format") is torch.contiguous_format else moved

    torch.Tensor.to = to
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    torch.jit.script = lambda f=None, *args, **kwargs: f  # the compiler cannot see through the wrapped factories

    real_generator = torch.Generator

    class Generator(real_generator):
        def __new__(cls, device="cpu"):
            return real_generator.__new__(cls, device=_cpu(device))

    torch.Generator = Generator


class Event:
    """torch.cuda.Event on the wall clock."""

    def __init__(self, *args, **kwargs):
        self.time = 0.0

    def record(self, *args):
        self.time = time.perf_counter()

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3

    def query(self):
        return True

    def synchronize(self, *args):
        pass

    wait = synchronize


class Stream:
    """Everything is done when a call returns, so a stream has nothing to do."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def _cuda_module():
    cuda = torch.cuda

    def constant(value):
        return lambda *args, **kwargs: value  # a new function each time: torch._dynamo refuses duplicates

    for name in ("init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, constant(None))
    for name in ("manual_seed", "manual_seed_all", "set_rng_state"):
        setattr(cuda, name, constant(None))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, constant(0))
    cuda.is_available = lambda: True
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda.current_device = lambda: CPU
    cuda.get_device_name = lambda *args: "cpu"
    cuda.get_rng_state = lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8)
    cuda.get_device_properties = lambda *args, **kwargs: types.SimpleNamespace(
        name="cpu", total_memory=0, major=9, minor=0, multi_processor_count=1
    )
    cuda.Event, cuda.Stream = Event, Stream
    cuda.current_stream = lambda *args, **kwargs: Stream()
    cuda.default_stream = lambda *args, **kwargs: Stream()
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.device = lambda *args, **kwargs: contextlib.nullcontext()

    collect_env.main = lambda: None  # runs pip list and nvidia-smi


class Averaged:
    """Work handle of a sum that becomes a mean when it is waited for: gloo has no AVG."""

    def __init__(self, work, tensor, size):
        self.work, self.tensor, self.size, self.done = work, tensor, size, False

    def wait(self, *args, **kwargs):
        self.work.wait()
        if not self.done:
            self.tensor.div_(self.size)
            self.done = True
        return True

    def is_completed(self):
        return bool(self.work.is_completed())


class Several:
    def __init__(self, works):
        self.works = works

    def wait(self, *args, **kwargs):
        for work in self.works:
            work.wait()


def _collectives():
    real_init, real_all_reduce, real_scatter = dist.init_process_group, dist.all_reduce, dist.reduce_scatter_tensor
    add = dist.ReduceOp.SUM

    def init_process_group(*args, **kwargs):
        kwargs.pop("device_id", None)
        return real_init(*args, **{**kwargs, "backend": "gloo"})

    def all_reduce(tensor, op=add, group=None, async_op=False):
        if op != dist.ReduceOp.AVG:
            return real_all_reduce(tensor, op=op, group=group, async_op=async_op)
        data = tensor.detach()
        work = Averaged(real_all_reduce(data, op=add, group=group, async_op=True), data, dist.get_world_size(group))
        return work if async_op else work.wait() and None

    def all_reduce_coalesced(tensors, op=add, group=None, async_op=False):
        work = Several([all_reduce(tensor, op=op, group=group, async_op=True) for tensor in tensors])
        return work if async_op else work.wait()

    def reduce_scatter_tensor(output, input, op=add, group=None, async_op=False):
        # gloo compares the first dimension where NCCL compares the number of elements
        return real_scatter(output.view(-1), input.reshape(-1), op=op, group=group, async_op=async_op)

    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce
    dist.all_reduce_coalesced, dist.reduce_scatter_tensor = all_reduce_coalesced, reduce_scatter_tensor


@contextlib.contextmanager
def triton_stub():
    """A triton to import and to decorate with, gone after the imports: torch._dynamo would find it."""
    try:
        import triton  # noqa: F401

        yield
        return
    except ImportError:
        pass
    triton_module, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    triton_module.jit = lambda f=None, **kwargs: f if f is not None else (lambda g: g)
    triton_module.heuristics = triton_module.autotune = lambda *args, **kwargs: lambda g: g
    triton_module.cdiv = lambda a, b: -(-a // b)
    triton_module.__path__ = []
    triton_module.language, language.constexpr = language, int
    sys.modules["triton"], sys.modules["triton.language"] = triton_module, language
    try:
        yield
    finally:
        del sys.modules["triton"], sys.modules["triton.language"]
