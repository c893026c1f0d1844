"""torch.cuda on a machine without a GPU: "cuda" devices mean the CPU, streams do nothing, NCCL is gloo.

For tests of control flow, batches and losses in code that assumes CUDA, of Megatron-LM and nanotron; it says nothing
about speed or memory.
"""

import collections
import contextlib
import logging
import multiprocessing.spawn
import os
import time
import types

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
GIB24 = 24 << 30
NOTHING = (
    "_lazy_init",
    "empty_cache",
    "init",
    "ipc_collect",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "synchronize",
)
ZERO = (
    "current_device",
    "device_memory_used",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "utilization",
)


def is_cuda(device):
    if isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True
    return device.startswith("cuda") if isinstance(device, str) else getattr(device, "type", None) == "cuda"


class CudaMeansCpu(TorchFunctionMode):
    """Rewrites device arguments of every torch call, and claims that tensors are on CUDA where somebody asks."""

    SAME = (torch.Tensor.cuda, torch.Tensor.pin_memory)

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.device and args and type(args[0]) is int:
            return CPU
        if func in self.SAME:
            return args[0]
        if func is torch.Tensor.is_pinned:
            return False
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.is_cuda.__get__:
            return True
        if func is torch.Tensor.to:
            args = tuple(CPU if not isinstance(a, torch.Tensor) and is_cuda(a) else a for a in args)
            if kwargs.get("memory_format") is torch.contiguous_format:  # a copy lays the tensor out anew
                return func(*args, **kwargs).contiguous()
        if func is torch.Tensor.type:
            if len(args) == 1 and not kwargs:  # type names of "cuda" tensors
                name = func(*args)
                return name if "cuda" in name else name.replace("torch.", "torch.cuda.")
            args = tuple(a.replace("torch.cuda.", "torch.") if isinstance(a, str) else a for a in args)
        if is_cuda(kwargs.get("device", False)):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


class Stream:
    cuda_stream = stream_id = device_index = priority = 0
    device = CPU

    def __init__(self, *args, **kwargs): ...

    def wait_stream(self, *args): ...

    def wait_event(self, *args): ...

    def synchronize(self): ...

    def record_event(self, event=None):
        return event or Event()

    def query(self):
        return True

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    @staticmethod
    def priority_range():
        return (0, -1)


class Event:
    def __init__(self, *args, **kwargs):
        self.time = time.perf_counter()

    def record(self, *args, **kwargs):
        self.time = time.perf_counter()

    def wait(self, *args, **kwargs): ...

    def synchronize(self): ...

    def query(self):
        return True

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3


def constant(value):
    """A new function at each call: torch.compile insists that torch.* callables are distinct objects."""

    def answer(*args, **kwargs):
        return value

    return answer


def install():
    """Replace torch.cuda's functions. Call before importing megatron."""
    cuda = torch.cuda
    generator = torch.default_generator  # plays the device's generator
    for name in NOTHING:
        setattr(cuda, name, constant(None))
    for name in ZERO:
        setattr(cuda, name, constant(0))
    cuda.is_available = constant(True)
    cuda.is_initialized = constant(True)
    cuda.is_current_stream_capturing = constant(False)
    cuda._lazy_call = lambda callback, **kwargs: callback()
    cuda.device_count = constant(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    cuda.get_device_name = constant("cpu")
    cuda.get_device_capability = constant((8, 0))
    cuda.get_device_properties = constant(
        types.SimpleNamespace(name="cpu", total_memory=GIB24, major=8, minor=0, multi_processor_count=1)
    )
    cuda.mem_get_info = constant((GIB24, GIB24))
    cuda.memory_snapshot = constant([])
    cuda.memory_stats = lambda *args, **kwargs: collections.Counter()
    cuda.Stream = cuda.ExternalStream = Stream
    cuda.Event = Event
    stream = Stream()
    cuda.current_stream = cuda.default_stream = constant(stream)
    cuda.stream = cuda.StreamContext = cuda.device = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.default_generators = (generator,)
    cuda.manual_seed = generator.manual_seed
    cuda.initial_seed = generator.initial_seed
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: generator.get_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *args, **kwargs: generator.set_state(state)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, constant(None))
    cuda.nvtx.range = lambda *args, **kwargs: contextlib.nullcontext()
    for kind in ("Float", "Half", "BFloat16", "Int", "Long", "Byte", "Double", "Bool", "Short", "Char"):
        setattr(cuda, kind + "Tensor", getattr(torch, kind + "Tensor"))
    torch.nn.Module.cuda = lambda self, device=None: self
    real = torch.Generator
    torch.Generator = type("Generator", (real,), {"__new__": lambda cls, device="cpu": real.__new__(cls)})
    anything = torch
    anything.compile = lambda function=None, *args, **kwargs: function if function is not None else (lambda f: f)
    use_gloo()
    spawn_without_main()
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    mode, run_backward = CudaMeansCpu(), torch.autograd._engine_run_backward

    def run_with_mode(*args, **kwargs):  # in Tensor.backward it is switched off
        with mode:
            return run_backward(*args, **kwargs)

    torch.autograd._engine_run_backward = run_with_mode
    mode.__enter__()


def use_gloo():
    init, new_group, barrier = dist.init_process_group, dist.new_group, dist.barrier
    c10d = dist.distributed_c10d
    api = dist

    def init_process_group(backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        return init("gloo", *args, **kwargs)

    def gloo_group(ranks=None, timeout=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        kwargs.pop("backend", None)
        return new_group(ranks, timeout, "gloo", None, **kwargs)

    api.init_process_group = c10d.init_process_group = init_process_group
    api.new_group = c10d.new_group = gloo_group
    api.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group, async_op)


def spawn_without_main():
    """Spawned helpers (of dist_checkpointing) would import the training script again, without this module."""
    spawn = multiprocessing.spawn
    prepare = spawn.get_preparation_data

    def get_preparation_data(name):
        data = prepare(name)
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
        return data

    spawn.get_preparation_data = get_preparation_data
