"""--dataloader-inter-document-masking, in a checkout that has it: run by test_pretrain_options.py with a folder.

Prints "equal" if every sample of ours is GPTDataset's, windows and taken-over samples; "absent" without the option.
"""

import sys
from pathlib import Path

from stock import adopted, assert_equal_samples, build_stock, data_of, dataset_config, in_order, run_checks

LENGTH = 13
PACKED = {"inter_document_masking": True, "create_attention_mask": False}


def windows_are_those_of_gpt_dataset(folder):
    path, prefixes = adopted(folder, "a", order="sequential")
    config = dataset_config(LENGTH, blend=(prefixes, None), split="1,0,0", **PACKED)
    stock = in_order(build_stock(config, [1, 0, 0])[0], LENGTH)
    data = data_of(path, dataset_config(LENGTH, **PACKED), [len(stock), 0, 0], split="1,0,0")
    ours = data.datasets()[0]
    for w in range(len(stock)):
        assert_equal_samples(ours[w], stock[w], ignore=("sample_index", "dataset_id"))


def so_are_samples_that_are_taken_over(folder):
    path, prefixes = adopted(folder, "ab", order={"megatron": "cache"})
    options = {"blend": (prefixes, [0.4, 0.6]), "split": "1,0,0", "path_to_cache": str(folder / "cache")}
    sizes, config = [80, 0, 0], dataset_config(LENGTH, **PACKED, **options)
    stock = build_stock(config, sizes)[0]
    ours = data_of(path, config, sizes).datasets()[0]
    for t in range(len(ours)):
        assert_equal_samples(ours[t], stock[t], ignore=["sample_index"])


if __name__ == "__main__":
    run_checks(Path(sys.argv[1]), windows_are_those_of_gpt_dataset, so_are_samples_that_are_taken_over)
