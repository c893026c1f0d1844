"""Run a Megatron script on a machine without a GPU, unmodified: python run.py SCRIPT args..., or -m MODULE args...

PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py pretrain_gpt.py ARGS
PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py -m conceptloader.launch pretrain_gpt.py ARGS

Tests start it by tests.ranks. $WHEEL: there is no checkout; what is installed of Megatron is imported once for all.
"""

import contextlib
import glob
import importlib.machinery
import importlib.util
import os
import sys
import typing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.megatron.harness import cpu_context, record
from tests.ranks import fake_cuda, fake_triton
from tests.ranks.launch import run_script


def prepare_megatron():
    """What a checkout lacks here: compiled helpers, Python 3.12, Transformer Engine."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override
    with contextlib.suppress(ImportError):
        fused = importlib.import_module("megatron.legacy.fused_kernels")
        fused.load = fake_cuda.constant(None)
    with contextlib.suppress(
        ImportError
    ):  # main asks whether a layer of MTP is one of these, which are no classes here
        layers = importlib.import_module("megatron.core.tensor_parallel.inference_layers")
        for kind in ("InferenceColumnParallelLinear", "InferenceLayerNormColumnParallelLinear"):
            if not isinstance(getattr(layers, kind, object), type):
                setattr(layers, kind, type(kind, (), {}))
    utils = importlib.import_module("megatron.core.datasets.utils")
    utils.compile_helpers = fake_cuda.constant(None)
    name = "megatron.core.datasets.helpers_cpp"
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = wheel_helpers(name)


def wheel_helpers(name):
    """The index builders that the megatron-core wheel has compiled."""
    for root in sys.path:
        for path in glob.glob(os.path.join(root, *name.split(".")[:-1], "helpers_cpp*.so")):
            loader = importlib.machinery.ExtensionFileLoader(name, path)
            spec = importlib.util.spec_from_loader(name, loader)
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    raise ImportError("install megatron-core: the checkout needs its compiled index builders")


fake_triton.install()
fake_cuda.install()
prepare_megatron()
cpu_context.install()
if "WHEEL" in os.environ:
    import conceptloader.integrations.megatron_lm  # noqa: F401


def main(argv):
    if "RECORD" in os.environ:
        record.install(os.environ["RECORD"], int(os.environ.get("KILL_AFTER", "0")))
    run_script(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
