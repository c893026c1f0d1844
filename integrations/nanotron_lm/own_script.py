"""For a custom training script, with any version of nanotron: the loader, and what to save with a checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from conceptloader.config import load_config, open_blend

from .batches import make_dataloader
from .data import OWN_SCRIPT, StageDataset, open_stage
from .options import NanotronOptions
from .state import State


def build_dataloader(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    seq_len: int,
    micro_batch_size: int,
    global_batch_size: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    seed: int = 0,
    position_ids: bool = False,
    model_inputs: Mapping[str, str] | None = None,
    consumed_samples: int = 0,
    step: int = 0,
    steps: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    allow_changed: tuple[str, ...] = (),
    run_log: str | os.PathLike[str] | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    vocabulary: int | None = None,
) -> DataLoader[Any]:
    """An endless DataLoader of nanotron's micro batches, for this rank.

    Args:
        config: Path of a configuration, or the same as a mapping; its seed and seq_len may be omitted.
        seq_len: Tokens of a sample, if the configuration does not say it.
        micro_batch_size: Samples of a micro batch on one rank.
        global_batch_size: Samples of a step over all ranks.
        parallel_context: nanotron's.
        input_pp_rank: Pipeline rank that takes the inputs.
        output_pp_rank: Pipeline rank that takes the labels.
        seed: Used if the configuration has none.
        position_ids: True for models that take them (Qwen2).
        model_inputs: Batch keys that the model takes beyond nanotron's own four, with the pipeline stage that uses
            each.
        consumed_samples: Trained so far, over all ranks, since this script began the run or continued it from another
            trainer.
        step: Steps trained so far.
        steps: Last step of the run, to check and log what it will read.
        checkpoint: Folder that save_state() wrote; what decided past samples is compared with it. Required with
            consumed_samples.
        allow_changed: Names of changes to accept.
        run_log: Folder of the checkpoints; this start is appended to the log there, by one process.
        num_workers: Processes of the DataLoader.
        pin_memory: Whether its batches are in pinned memory.
        vocabulary: The model's, to refuse datasets with larger token ids.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ResumeError: For a changed past.
    """
    section = {"model_inputs": dict(model_inputs or {}), "allow_changed": list(allow_changed)}
    options = NanotronOptions.parse(section, "build_dataloader")
    blend = open_blend(load_config(config, defaults={"seed": seed}).with_seq_len(seq_len))
    blend.config.outputs.check_weights(options.model_inputs, "model_inputs")
    dataset = open_stage(
        blend,
        options,
        parallel_context,
        entry=OWN_SCRIPT,
        step=step,
        micro_batch_size=micro_batch_size,
        global_batch_size=global_batch_size,
        steps=steps,
        saved=State.read(Path(checkpoint)) if checkpoint is not None else None,
        in_stage=consumed_samples,
        vocabulary=vocabulary,
        log=Path(run_log) if run_log is not None else None,
    )
    return make_dataloader(
        dataset,
        parallel_context=parallel_context,
        input_pp_rank=input_pp_rank,
        output_pp_rank=output_pp_rank,
        num_workers=num_workers,
        use_position_ids=position_ids,
        dataloader_pin_memory=pin_memory,
    )


def save_state(loader: DataLoader[Any], folder: str | os.PathLike[str], *, consumed_samples: int) -> None:
    """Write conceptloader.json into the folder of a checkpoint. To be called by one process.

    Args:
        loader: What `build_dataloader` returned.
        folder: Of the checkpoint.
        consumed_samples: Trained so far, since this script began the run or continued it from another trainer.
    """
    dataset = loader.dataset
    assert isinstance(dataset, StageDataset)
    dataset.state_at(dataset.stage_start + consumed_samples).write(Path(folder))
