"""conceptloader.json in every checkpoint: that of progress/state.py, and which data stage of nanotron's it is in."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conceptloader.errors import ResumeError
from conceptloader.order.progress.state import OrderState, saved_count
from conceptloader.storage.durable import write_file

NAME = "conceptloader.json"


@dataclass(frozen=True, kw_only=True)
class State:
    """order: see OrderState. stage, stage_start: name of nanotron's data stage, and samples of the run before it."""

    order: OrderState
    stage: str
    stage_start: int

    @property
    def consumed(self) -> int:
        """Samples of the run that were trained, over all data stages."""
        return self.order.consumed

    def write(self, folder: Path) -> None:
        """Write NAME into `folder`, completely or not at all."""
        write_file(str(folder / NAME), (json.dumps(self.order.leaf()) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> "State | None":
        """The state of a checkpoint, None if it has none.

        Raises ResumeError if it is corrupt, was edited, or is of another version.
        """
        path = folder / NAME
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise ResumeError(
                path,
                f"a corrupt state ({type(error).__name__}: {error})",
                "the state as it was saved",
                "set checkpoints.resume_checkpoint_path to another checkpoint",
            ) from error
        saved = OrderState.read(data, str(path))
        consumed, stage = saved.consumed, saved.more.get("data_stage")
        stage_start = saved_count(saved.more, "data_stage_start", str(path))
        if not isinstance(stage, str) or stage_start > consumed:
            raise ResumeError(
                path,
                f"a corrupt state (data stage {stage!r} starts at {stage_start} of {consumed} consumed samples)",
                "the state as it was saved",
                "set checkpoints.resume_checkpoint_path to another checkpoint",
            )
        return cls(order=saved, stage=stage, stage_start=stage_start)

    def start_of(self, stage: str, in_stage: int) -> tuple[int, bool]:
        """Samples of the run before this data stage, of which `in_stage` are trained, and whether it begins now.

        Raises ResumeError if nanotron has trained another number of samples than this state says.
        """
        if stage != self.stage and not in_stage:
            return self.consumed, True
        if self.stage_start + in_stage != self.consumed:
            raise ResumeError(
                f"data stage {stage!r}",
                f"{in_stage} consumed samples by nanotron",
                f"{self.consumed - self.stage_start}, as {NAME} says (of stage {self.stage!r})",
                "resume from a checkpoint whose files were written together (resume_checkpoint_path)",
            )
        return self.stage_start, False


def check_layout(checkpoint: Path, config: Any) -> None:
    """Raise ResumeError where nanotron would fail to load what it saved at another tensor or pipeline parallel size."""
    try:
        found = json.loads((checkpoint / "optimizer/optimizer_config.json").read_text())["parallelism"]
        saved = {"pp": int(found["pp_size"]), "tp": int(found["tp_size"])}
    except (OSError, ValueError, KeyError):
        return  # what is wrong there nanotron says
    loads, sizes = config.checkpoints, config.parallelism
    for name, size, parts in (
        ("pp", sizes.pp, {"optimizer": loads.load_optimizer, "learning rate scheduler": loads.load_lr_scheduler}),
        ("tp", sizes.tp, {"learning rate scheduler": loads.load_lr_scheduler}),
    ):
        if size != saved[name] and any(parts.values()):
            what = " and ".join(part for part, loaded in parts.items() if loaded)
            raise ResumeError(
                f"parallelism.{name}",
                f"{size}",
                f"{saved[name]}, at which {checkpoint} was written: nanotron cannot load its {what} at another size",
                f"set {name} to {saved[name]} (dp, micro batch and accumulation may change)",
            )
