"""conceptloader.json in every checkpoint: the order spec of the run so far and the position in it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from conceptloader.errors import ResumeError
from conceptloader.order.spec import OrderSpec

NAME = "conceptloader.json"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class State:
    """spec: the order from sample 0 of the run on. consumed: samples of it that were trained, over all data stages.

    stage, stage_start: name of nanotron's data stage, and `consumed` at its beginning.
    """

    spec: OrderSpec
    consumed: int
    stage: str
    stage_start: int

    def write(self, folder: Path) -> None:
        """Write NAME into `folder`, completely or not at all."""
        data = {
            "version": VERSION,
            "spec_hash": self.spec.hash,
            "spec": self.spec.to_dict(),
            "consumed_samples": self.consumed,
            "data_stage": self.stage,
            "data_stage_start": self.stage_start,
        }
        temporary = folder / f".{NAME}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> "State | None":
        """The state of a checkpoint, None if it has none.

        Raises ResumeError if it is damaged or of a later version.
        """
        path = folder / NAME
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise ResumeError(f"{path}: version {data['version']}, this release of conceptloader knows {VERSION}")
            state = cls(
                spec=OrderSpec.from_dict(data["spec"]),
                consumed=int(data["consumed_samples"]),
                stage=str(data["data_stage"]),
                stage_start=int(data["data_stage_start"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ResumeError):
                raise
            raise ResumeError(f"{path}: damaged ({type(error).__name__}: {error}); take another checkpoint") from error
        if state.spec.hash != data["spec_hash"]:
            raise ResumeError(
                f"{path}: spec_hash {data['spec_hash']} is not that of its spec, {state.spec.hash}; it was edited"
            )
        return state
