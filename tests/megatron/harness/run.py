"""Run a Megatron script or module on CPU with gloo, as `python` would run it on GPUs with NCCL.

PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py pretrain_gpt.py ARGS
PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py -m conceptloader.launch pretrain_gpt.py ARGS
"""

import os
import runpy
import sys
import types

sys.path[0] = os.path.dirname(os.path.abspath(__file__))
import cpu_context  # noqa: E402
import fake_cuda  # noqa: E402
import fake_triton  # noqa: E402

ours = types.ModuleType("tests")  # a checkout may have a package of that name, which would come first
ours.__path__ = [os.path.join(sys.path[0], "../..")]
sys.modules["tests"] = ours
from tests.dying import die_with_parent  # noqa: E402

die_with_parent()
fake_triton.install()
fake_cuda.install()
fake_cuda.prepare_megatron()
cpu_context.install()
if "RECORD" in os.environ:
    import record

    record.install(os.environ["RECORD"], int(os.environ.get("KILL_AFTER", "0")))
if sys.argv[1] == "-m":
    sys.path[0] = os.getcwd()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
