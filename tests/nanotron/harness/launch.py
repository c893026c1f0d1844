"""Run a nanotron script on a machine without a GPU, unmodified, by tests.ranks; what each rank saw is in record.py.

`main` takes the words behind `python`: SCRIPT args..., or -m MODULE args... The configuration must say dtype float32
and accumulate_grad_in_fp32 false. $NANOTRON_SRC is a checkout of nanotron; without it the installed package is used.
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

sys.path.insert(0, str(HERE / "stubs"))
if os.environ.get("NANOTRON_SRC"):
    sys.path.insert(0, str(Path(os.environ["NANOTRON_SRC"]) / "src"))
cpu_torch.install()
with cpu_torch.triton_stub():
    cpu_nanotron.install()
    import nanotron.trainer  # noqa: F401


def main(argv):
    record.install()
    if argv[0] == "-m":
        sys.argv = [*argv[1:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*argv]
        runpy.run_path(argv[0], run_name="__main__")
