"""Imported by the launcher: all weight on math and code, set behind step 2; metrics of every step of rank 0."""

import json
import os
from dataclasses import asdict

import nanotron.trainer

import conceptloader as cl
from conceptloader.integrations import nanotron_lm

step = nanotron.trainer.DistributedTrainer.training_step


def training_step(self, dataloader):
    if self.iteration_step == 3:
        nanotron_lm.set_weights({"math": 1, "code": 1})
    return step(self, dataloader=dataloader)


nanotron.trainer.DistributedTrainer.training_step = training_step
if os.environ["RANK"] == "0":
    cl.metrics.on_step(lambda metrics: print("METRICS", json.dumps(asdict(metrics))))
