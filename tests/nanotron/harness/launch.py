"""Run a nanotron script on a machine without a GPU, unmodified.

    torchrun --nproc_per_node 2 launch.py SCRIPT args...
    torchrun --nproc_per_node 2 launch.py -m MODULE args...

The configuration must say dtype float32 and accumulate_grad_in_fp32 false.
Environment: NANOTRON_SRC, a checkout of nanotron (otherwise the installed package is used); HARNESS_RECORD, a folder
for what each rank saw (see record.py); HARNESS_KILL="RANK:STEP", the rank that dies by SIGKILL after that step.
"""

import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import cpu_nanotron  # noqa: E402
import cpu_torch  # noqa: E402
import record  # noqa: E402


def main(args: list[str]) -> None:
    runpy.run_path(str(HERE.parents[1] / "dying.py"))["die_with_parent"]()  # a checkout may have `tests` of its own
    sys.path.insert(0, str(HERE / "stubs"))
    if os.environ.get("NANOTRON_SRC"):
        sys.path.insert(0, str(Path(os.environ["NANOTRON_SRC"]) / "src"))
    cpu_torch.install()
    with cpu_torch.triton_stub():
        cpu_nanotron.install()
    record.install()
    if args[0] == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
