"""Lets the unmodified torchtitan train on a build of torch without CUDA. Call install() before importing torchtitan.

torchtitan asks torch which accelerator there is, and takes CUDA if there is none. Here the answer is "cpu"; torch.cpu
gets the few functions of torch.cuda that the trainer calls; and the two parts that only GPUs have (triton kernels of an
expert-parallel dispatcher, compiled FlexAttention) are stood in for.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections import namedtuple

import torch
import torch._utils
import torch.distributed
import torch.distributed.fsdp

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
ATTENTION = "torchtitan.models.common.attention"
Aux = namedtuple("Aux", "lse max_scores", defaults=(None, None))
DENSE = {}  # the last block mask as a dense one: all layers of a forward share it


def dense_mask(block_mask, device):
    """[B, 1, T, T] bool, from the mask function of a flex-attention block mask; B is 1 where batches are flat."""
    if DENSE.get("of") is not block_mask:
        rows, cols = block_mask.seq_lengths
        batch = torch.arange(block_mask.shape[0], device=device)[:, None, None, None]
        q, k = torch.arange(rows, device=device)[:, None], torch.arange(cols, device=device)[None, :]
        zero = torch.zeros((), dtype=torch.long, device=device)
        DENSE.update(of=block_mask, mask=block_mask.mask_mod(batch, zero, q, k).expand(len(batch), 1, rows, cols))
    return DENSE["mask"]


def flex_attention(
    q, k, v, *, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_aux=None, kernel_options=None
):
    """In place of the compiled flex_attention, which has no backward on CPU: dense attention with the same mask."""
    if score_mod is not None or (return_aux is not None and (return_aux.lse or return_aux.max_scores)):
        raise NotImplementedError("CPU shim: score_mod, lse")
    mask = None if block_mask is None else dense_mask(block_mask, q.device)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return out, Aux()


class Patches(importlib.abc.MetaPathFinder):
    """Imports of two modules of torchtitan: one is replaced, the other changed once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name == KERNELS:
            return importlib.machinery.ModuleSpec(name, NoKernels())
        if name == ATTENTION:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                module.FlexAttention._compiled_flex_attn = staticmethod(flex_attention)
                # a compiled mask would need a C++ compiler and a minute, for nothing
                module._compiled_create_block_mask = module.create_block_mask

            spec.loader.exec_module = exec_module
            return spec
        return None


class NoKernels(importlib.abc.Loader):
    """Any name can be imported; calling one is an error."""

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def missing(name):
            if name.startswith("__"):
                raise AttributeError(name)

            def kernel(*_, **__):
                raise NotImplementedError(f"CPU shim: triton kernel {name}")

            return kernel

        module.__getattr__ = missing
        return module

    def exec_module(self, module):
        pass


def install():
    assert not torch.cuda.is_available(), "the shim is for machines without GPU"
    assert "torchtitan" not in sys.modules
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: torch.cpu
    cpu = torch.cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu.get_device_name = lambda *_: "CPU"
    cpu.get_device_properties = lambda *_: types.SimpleNamespace(name="CPU", total_memory=memory)
    cpu.memory_stats = lambda *_: {}
    cpu.empty_cache = lambda: None
    cpu.reset_peak_memory_stats = lambda *_: None
    barrier = torch.distributed.barrier

    def plain_barrier(group=None, async_op=False, device_ids=None):  # gloo takes no device_ids
        return barrier(group, async_op)

    torch.distributed.barrier = plain_barrier
    if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13 and older; main is written for a nightly build
        torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout
    FSDPModule = torch.distributed.fsdp.FSDPModule
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_gradient_divide_factor(self, factor):  # else FSDP reduces with PREMUL_SUM, which gloo does not have
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_gradient_divide_factor
    sys.meta_path.insert(0, Patches())
