"""`order: megatron`: continue with the samples of a training that Megatron's own loader began.

Megatron wrote what decides its order into index files: a blend (dataset_index, dataset_sample_index) and, for each
.bin/.idx, document_index, sample_index and shuffle_index. They are mapped read-only here, and never built: Megatron's
own builder is asked which files they are, and told to map them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset

from conceptloader.errors import ConfigError


def map_indices(folder: str | None, base: str, *suffixes: str) -> tuple[npt.NDArray[Any], ...]:
    """Index files, read-only. ConfigError, naming files of the same kind that do exist, if one is not there."""
    if folder is None:
        raise ConfigError(
            "order: megatron",
            "no --data-cache-path",
            "the directory with the indices of the run",
            "pass the --data-cache-path that the run was started with",
        )
    arrays = []
    for suffix in suffixes:
        path = Path(folder, f"{base}-{suffix}.npy")
        try:
            arrays.append(np.load(path, mmap_mode="r", allow_pickle=False))
        except FileNotFoundError as error:
            split = base.split("-", 1)[1]
            others = sorted(p.name for p in Path(folder).glob(f"*-{split}-{suffix}.npy"))[:5]
            raise ConfigError(
                "order: megatron",
                f"no {path}",
                "the index files of the run",
                f"files for other arguments: {', '.join(others) or 'none'}. Use the command line of the run that "
                "is migrated, unchanged in data paths, weights, --split, --seed, --seq-length, tokenizer and "
                "the number of training and evaluation samples (see its *-description.txt). To continue "
                "in conceptloader's order where its files end: remove `order: megatron`, and pass "
                "--conceptloader-allow-changed order",
            ) from error
    return tuple(arrays)


def cache_of(prefix: str) -> str:
    """Where Megatron keeps the indices of PREFIX.bin without --data-cache-path."""
    return str(Path(prefix, "cache", "GPTDataset_indices"))


class MappedGPTDataset(GPTDataset):  # type: ignore[misc]
    """GPTDataset with its index files mapped, for any caching options."""

    def _build_document_sample_shuffle_indices(self) -> tuple[npt.NDArray[Any], ...]:
        folder = self.config.path_to_cache or cache_of(self.dataset.path_prefix)
        base = f"{self.unique_description_hash}-GPTDataset-{self.index_split.name}"
        return map_indices(folder, base, "document_index", "sample_index", "shuffle_index")

    def __len__(self) -> int:
        return len(self.sample_index) - 1

    @property
    def datasets(self) -> "list[MappedGPTDataset]":
        """As those of a blend."""
        return [self]

    def sample(self, index: int) -> tuple[int, list[range]]:
        """(0, where its tokens lie in the .bin file, S + 1 of them unless the data ended before)."""
        low = self.dataset.index
        k = int(self.shuffle_index[index])
        (first, first_offset), (last, last_offset) = (map(int, self.sample_index[j]) for j in (k, k + 1))
        pieces = []
        for n in range(first, last + 1):
            document = int(self.document_index[n])
            begin = int(low.sequence_pointers[document]) // low.dtype_size
            start = begin + (first_offset if n == first else 0)
            stop = begin + (last_offset + 1 if n == last else int(low.sequence_lengths[document]))
            pieces.append(range(start, stop))
        return 0, pieces


class MappedBlend(BlendedDataset):  # type: ignore[misc]
    """BlendedDataset with its index files mapped."""

    def _build_indices(self) -> tuple[npt.NDArray[Any], ...]:
        base = f"{self.unique_description_hash}-BlendedDataset-{self.split.name}"
        return map_indices(self.config.path_to_cache, base, "dataset_index", "dataset_sample_index")

    def __len__(self) -> int:
        return len(self.dataset_index)

    def sample(self, index: int) -> tuple[int, list[range]]:
        """(number of the dataset in the blend, where its tokens lie)."""
        k = int(self.dataset_index[index])
        return k, self.datasets[k].sample(int(self.dataset_sample_index[index]))[1]


# The names are part of what Megatron hashes into its file names.
MappedGPTDataset.__name__ = "GPTDataset"
MappedBlend.__name__ = "BlendedDataset"


class MappingBuilder(BlendedMegatronDatasetBuilder):  # type: ignore[misc]
    """Megatron's builder, with the mapped classes in place of the building ones and no rank waiting for another."""

    def build(self) -> Any:
        """Upstream's build without its closing checks of lengths; it is one of the names that the launcher patches."""
        return self._build_blended_dataset_splits()

    @staticmethod
    def build_generic_dataset(cls: Any, is_built_on_rank: Any, synchronize_ranks: bool, *args: Any) -> Any:
        """As upstream, but for the two classes and the barrier."""
        mapped = {GPTDataset: MappedGPTDataset, BlendedDataset: MappedBlend}[cls]
        return mapped(*args) if is_built_on_rank() else None

    def _build_megatron_datasets_parallel(self, prefixes: Any, split: Any, sizes_per_dataset: Any) -> Any:
        pairs = zip(prefixes, sizes_per_dataset, strict=True)
        built = [self._build_megatron_dataset_splits(prefix, split, sizes, False) for prefix, sizes in pairs]
        return [list(of_split) for of_split in zip(*built, strict=True)]
