"""run_train.py as restarts within a process have it: steps 2 and 5 raise, and then the trainer is built again."""

import runpy
import sys

from nanotron.trainer import DistributedTrainer

SCRIPT, _, CONFIG = sys.argv[1:]
fails_in = [2, 5]
real = DistributedTrainer.training_step


class Fault(Exception):
    pass


def training_step(self, dataloader):
    if [self.iteration_step] == fails_in[:1]:
        del fails_in[0]
        raise Fault
    return real(self, dataloader)


DistributedTrainer.training_step = training_step
get_dataloader = runpy.run_path(SCRIPT, run_name="run_train")["get_dataloader"]
for _ in range(3):
    try:
        trainer = DistributedTrainer(CONFIG)
        trainer.train(get_dataloader(trainer))
    except Fault:
        print("RESTARTS", flush=True)
