"""--dataloader-inter-document-masking, in a checkout that has it: run by test_pretrain_options.py with a folder.

Prints "equal" if every sample of ours is GPTDataset's, windows and taken-over samples; "absent" without the option.
"""

import sys
from dataclasses import fields
from pathlib import Path

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from stock import adopted, assert_equal_samples, build_stock, dataset_config, in_order

from conceptloader.integrations.megatron_lm.data import MegatronData

LENGTH = 13
OURS = ("sample_index", "dataset_id")


def main(folder: Path) -> None:
    if "inter_document_masking" not in {field.name for field in fields(GPTDatasetConfig)}:
        print("absent")
        return
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    options = {"inter_document_masking": True, "create_attention_mask": False}
    (folder / "order").mkdir()
    path, prefixes = adopted(folder / "order", "a", order="sequential")
    config = dataset_config(LENGTH, blend=(prefixes, None), split="1,0,0", **options)
    stock = in_order(build_stock(config, [1, 0, 0])[0], LENGTH)
    data = MegatronData(path, dataset_config(LENGTH, **options), micro_batch_size=1, split="1,0,0")
    ours = data.datasets([len(stock), 0, 0])[0]
    for w in range(len(stock)):
        assert_equal_samples(ours[w], stock[w], ignore=OURS)

    (folder / "taken").mkdir()
    path, prefixes = adopted(folder / "taken", "ab", order="megatron", megatron_cache="cache")
    options |= {"blend": (prefixes, [0.4, 0.6]), "split": "1,0,0", "path_to_cache": str(folder / "taken/cache")}
    sizes, config = [80, 0, 0], dataset_config(LENGTH, **options)
    stock = build_stock(config, sizes)[0]
    ours = MegatronData(path, config, micro_batch_size=1, sizes=sizes).datasets(sizes)[0]
    for t in range(len(ours)):
        assert_equal_samples(ours[t], stock[t], ignore=["sample_index"])
    print("equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
