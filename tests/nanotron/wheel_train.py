"""A training script of one's own around nanotron 0.4 from PyPI: its trainer, its pipeline, its checkpoints, our data.

torchrun ... wheel_train.py CONFIG.yaml DATA.yaml
"""

import sys
from pathlib import Path
from typing import Any

from nanotron import distributed as dist
from nanotron.trainer import DistributedTrainer

from conceptloader.integrations.nanotron_lm import build_dataloader, save_state


class Trainer(DistributedTrainer):
    loader: Any = None

    def pre_save_checkpoint(self):
        """Runs before latest.txt names the checkpoint."""
        if dist.get_rank(self.parallel_context.world_pg) == 0:
            folder = Path(self.config.checkpoints.checkpoints_path) / str(self.iteration_step)
            folder.mkdir(parents=True, exist_ok=True)
            save_state(self.loader, folder, consumed_samples=self.consumed_train_samples)


def main(config, data):
    trainer = Trainer(config)
    folder = Path(trainer.config.checkpoints.checkpoints_path)
    trainer.loader = build_dataloader(
        data,
        seq_len=trainer.sequence_length,
        micro_batch_size=trainer.micro_batch_size,
        global_batch_size=trainer.global_batch_size,
        parallel_context=trainer.parallel_context,
        input_pp_rank=trainer.unwrapped_model.input_pp_rank,
        output_pp_rank=trainer.unwrapped_model.output_pp_rank,
        consumed_samples=trainer.consumed_train_samples,
        steps=trainer.config.tokens.train_steps,
        step=trainer.start_iteration_step,
        checkpoint=folder / str(trainer.start_iteration_step) if trainer.start_iteration_step else None,
        run_log=folder,
    )
    trainer.train(iter(trainer.loader))


if __name__ == "__main__":
    main(*sys.argv[1:])
