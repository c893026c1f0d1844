"""Which samples each process takes from its data iterator, and which concepts it gets; and sudden death.

One line of JSON per micro batch.
"""

import json
import os
import signal
from pathlib import Path

KEYS = (
    "sample_index",
    "dataset_id",
    "topic_ids",
    "rating_scores",
    "sample_seed",
    "concepts_ids",
    "concepts_span_index",
)
KEYS += ("loss_weight", "parity", "length_values", "teacher_ids", "teacher_logprobs")

STOCK = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")


def install(folder, kill_after):
    """Write rank<RANK>.jsonl and given<RANK>.jsonl into `folder`; SIGKILL at micro batch kill_after + 1."""
    from conceptloader.integrations.megatron_lm.batches import SplitIterator
    from conceptloader.integrations.megatron_lm.data import MegatronData

    pull = SplitIterator._pull
    rank = os.environ["RANK"]
    path = Path(folder, f"rank{rank}.jsonl")
    taken = 0

    def recording(self):
        nonlocal taken
        if kill_after and taken == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        stock, kept = pull(self)
        line = {key: kept[key].flatten().tolist() for key in KEYS if key in kept}
        line["tokens"] = []
        line |= {key: stock[key].flatten().tolist() for key in STOCK if key in stock}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return stock, kept

    SplitIterator._pull = recording

    share = MegatronData._share
    given = Path(folder, f"given{rank}.jsonl")

    def handing_out(self, *args):
        found = share(self, *args)
        if "sample_index" in found:  # else none of ours
            ours = {field.name for field in self.fields} - {"sample_index"}
            sums = {name: tensor.long().sum().item() for name, tensor in found.items() if name in ours}
            with given.open("a") as file:
                file.write(json.dumps({"sample_index": found["sample_index"].tolist(), **sums}) + "\n")
        return found

    MegatronData._share = handing_out
