"""Run a nanotron script on a machine without a GPU, unmodified, by tests.ranks; what each rank saw is in record.py.

`main` takes the words behind `python`: SCRIPT args..., or -m MODULE args... The configuration must say dtype float32
and accumulate_grad_in_fp32 false. $NANOTRON_SRC is a checkout of nanotron; without it the installed package is used.
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils import collect_env

from tests.nanotron.harness import collectives, cpu_nanotron, record
from tests.ranks import fake_cuda, fake_triton
from tests.ranks.launch import run_script

sys.path.insert(0, str(Path(__file__).parent / "stubs"))
if os.environ.get("NANOTRON_SRC"):
    sys.path.insert(0, str(Path(os.environ["NANOTRON_SRC"]) / "src"))
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
torch.set_num_threads(1)
torch.jit.script = lambda f=None, *args, **kwargs: f
collect_env.main = lambda: None  # runs pip list and nvidia-smi
fake_triton.install()
fake_cuda.install()
collectives.install()
cpu_nanotron.install()
import nanotron.trainer  # noqa: E402, F401


def main(argv):
    record.install()
    run_script(argv)
