"""Run a Megatron script or module on CPU with gloo, as `python` would run it on GPUs with NCCL.

PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py pretrain_gpt.py ARGS
PYTHONPATH=$MEGATRON_SRC torchrun --nproc_per_node 2 run.py -m conceptloader.launch pretrain_gpt.py ARGS

Tests start it by tests.ranks. $WHEEL: there is no checkout; what is installed of Megatron is imported once for all.
"""

import os
import runpy
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import cpu_context  # noqa: E402
import fake_cuda  # noqa: E402
import fake_triton  # noqa: E402

fake_triton.install()
fake_cuda.install()
fake_cuda.prepare_megatron()
cpu_context.install()
if "WHEEL" in os.environ:
    import conceptloader.integrations.megatron_lm  # noqa: F401
del sys.path[0]


def main(argv):
    if "RECORD" in os.environ:
        sys.path.insert(0, HERE)
        import record

        del sys.path[0]
        record.install(os.environ["RECORD"], int(os.environ.get("KILL_AFTER", "0")))
    if argv[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = [*argv[1:]]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*argv]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
