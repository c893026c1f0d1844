"""A run whose mixture learns, and the configuration that replays it."""

import conceptloader as cl
from tests.mixing.training import configuration

BATCH, STEPS = 8, 12
SAMPLES = BATCH * STEPS
SKIP = [{"at": 20, "count": 7}]


def run(folder, weights=(1, 1, 1), **more):
    """(a configuration that replays a run with odm, dataset and inputs of each of its samples).

    The log is in `folder`/log. Weights change from step 4 on, after every step.
    """
    config = configuration(folder, {"odm": {}}, skip=SKIP, **more)
    for name, weight in zip(config["datasets"], weights, strict=True):
        config["datasets"][name]["weight"] = weight
    loader = cl.batches(config, micro_batch_size=BATCH // 2, global_batch_size=BATCH)
    loader.log_start(folder / "log", 0)
    samples = []
    for number, batch in enumerate(loader):
        samples += zip(batch["dataset_id"].tolist(), batch["input_ids"].tolist(), strict=True)
        if number % 2:
            step = number // 2
            if step + 1 == STEPS:
                break
            loader.observe({"easy": 1 + step % 3, "hard": 5.0 - step / 3, "middle": 2.0})
    loader.close()
    del config["mixing"]
    return {**config, "replay": str(folder / "log")}, samples
