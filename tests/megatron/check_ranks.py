"""Two ranks that were given other data, or not: run by test_ranks.py with a folder. Writes what each found to a file of
its own: libraries print to the output of both, within lines."""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from megatron.core import parallel_state
from stock import dataset_config

from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.data import MegatronData

LAYOUTS = {
    "dp": {},
    "pp": {"pipeline_model_parallel_size": 2},
    "cp": {"context_parallel_size": 2},
    "tp": {"tensor_model_parallel_size": 2},
}
GIVEN = {"other weight": {}, "other copy": {}, "other position": {"consumed": 8, "accept": ["loader"]}}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found: dict[str, str] = {}
    for name, layout in LAYOUTS.items():
        parallel_state.initialize_model_parallel(**layout)
        for what, more in {"same": {}, **GIVEN}.items():
            path = folder / (f"{what}.yaml" if rank and "position" not in what else "same.yaml")
            try:
                MegatronData(path, dataset_config(16), micro_batch_size=2, **(more if rank else {}))
                found[f"{name}, {what}"] = "accepted"
            except ConfigError as error:
                found[f"{name}, {what}"] = " ".join(str(error).split())
        parallel_state.destroy_model_parallel()
    Path(f"found{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
