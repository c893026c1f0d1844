"""A run whose mixture learns, and the configuration that replays it."""

import json

import conceptloader as cl
from conceptloader.order.progress.runlog import FILE_NAME
from tests.mixing.training import configuration

BATCH, STEPS = 8, 12
SAMPLES = BATCH * STEPS
SKIP = [{"at": 20, "count": 7}]


def run(folder, weights=(1, 1, 1), **more):
    """A configuration that replays a run with odm, whose log is in `folder`/log. Weights change from step 4 on, after
    every step."""
    config = configuration(folder, {"odm": {}}, skip=SKIP, **more)
    for name, weight in zip(config["datasets"], weights, strict=True):
        config["datasets"][name]["weight"] = weight
    loader = cl.batches(config, micro_batch_size=BATCH // 2, global_batch_size=BATCH)
    loader.log_start(folder / "log", 0)
    for number, _ in enumerate(loader):
        if number % 2:
            step = number // 2
            if step + 1 == STEPS:
                break
            loader.observe({"easy": 1 + step % 3, "hard": 5.0 - step / 3, "middle": 2.0})
    loader.close()
    del config["mixing"]
    return {**config, "replay": str(folder / "log")}


def set_there(folder):
    """Sample -> the weights that a run set there, as its log has it at last."""
    lines = map(json.loads, (folder / FILE_NAME).read_text().splitlines())
    return {line["at"]: line["weights"] for line in lines if line["kind"] == "weights"}
