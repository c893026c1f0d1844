"""Training scripts as they are, whose ranks record what each step of the optimizer was trained on."""

import os
import signal

import torch
import torch._dynamo  # which optimizers import; here, once for all launches
from torch.optim.optimizer import register_optimizer_step_post_hook

from conceptloader.loader.torch.loader import Loader
from tests.ranks import loop
from tests.ranks.launch import record, run_script

__all__ = ["loop", "main"]  # one server imports torch for both


def main(argv):
    """argv: of the script. $DIES_SAVING=n: SIGKILL when half of its nth checkpoint is written."""
    batches, save, left = Loader.__iter__, torch.save, int(os.environ.get("DIES_SAVING", "0"))
    trained = []

    def noting(self):
        for batch in batches(self):
            trained.append((self, batch["sample_index"].tolist()))
            yield batch

    def stepped(*_):
        loader = trained[-1][0]
        record((loader.steps or 0) - 1, [sample for _, samples in trained for sample in samples])
        trained.clear()

    def save_and_die(state, path):
        nonlocal left
        save(state, path)
        left -= 1
        if not left:
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    Loader.__iter__, torch.save = noting, save_and_die
    register_optimizer_step_post_hook(stepped)
    run_script(argv)
