"""The datasets of a Megatron-Bridge run, for its dataloader type "single": Bridge counts and assigns samples.

Its checkpoints hold that count but no conceptloader state, so the order spec is kept in a file next to them.
"""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conceptloader.base.checks import as_names
from conceptloader.base.packages import imported
from conceptloader.batch.layout import Batch
from conceptloader.batch.open import batch_layout
from conceptloader.blend import Blend, load_config, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.partition import Partition
from conceptloader.order.progress.state import OrderState
from conceptloader.order.sequential import Sequential
from conceptloader.run.entry import Entry
from conceptloader.run.training import TrainingRun
from conceptloader.storage.durable import write_file
from conceptloader.torch.agreement import require_same
from conceptloader.torch.collate import collate_fn
from conceptloader.torch.dataset import SampleDataset
from conceptloader.torch.trained import check_no_run, check_tensors

_REMEDY = "install Megatron-Bridge of 2026 or later"
with imported("bridge_lm: megatron.bridge.data.base", _REMEDY, "megatron-bridge"):
    from megatron.bridge.data.base import DatasetProvider

FILE_NAME = "conceptloader_order.json"


BRIDGE = Entry(name="Megatron-Bridge")
_STEP = ("labels", "loss_mask", "position_ids")  # what Bridge's forward step takes besides tokens
_ENDLESS = 1 << 62  # Bridge's own sizes are as if batches, and intervals of evaluation, had never changed


class BridgeSamples(SampleDataset):
    """A SampleDataset whose batches have the names that Bridge's forward step takes, and `model_inputs`."""

    entry = BRIDGE

    def __init__(
        self,
        blend: Blend,
        model_inputs: Sequence[str] = (),
        allow_changed: Collection[str] = (),
        period: int = _ENDLESS,
    ) -> None:
        """period: samples after which the order begins again, as an evaluation in order does."""
        super().__init__(blend, _ENDLESS, allow_changed=allow_changed)
        self.model_inputs, self.period = as_names(model_inputs, "model_inputs"), period
        check_tensors(self.model_inputs, batch_layout(blend), BRIDGE)

    def read(self, indices: Sequence[int]) -> Batch:
        """The batch of these samples."""
        return super().read([index % self.period for index in indices])

    def collate_fn(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """tokens, labels, position_ids: int64 [B, S]; loss_mask: float32 [B, S]; `model_inputs`."""
        batch = collate_fn(samples)
        return {
            "tokens": batch["input_ids"],
            **{name: batch[name] for name in (*_STEP, *self.model_inputs) if name in batch},
        }


def _first_rank() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


@dataclass
class ConceptProvider(DatasetProvider):
    """`dataset=` of a Bridge configuration. The sampler of "single" resumes at the checkpoint's sample count.

    Attributes:
        config: Path of the configuration that is trained.
        seq_length: Of the model; the configuration may omit its own.
        valid: Path of the configuration for evaluation while training.
        test: Path of the configuration for evaluation at the end.
        model_inputs: Further tensors of a batch, for a custom forward step, which has to multiply losses by a
            loss_weight.
        state: The directory of the checkpoints. The order spec is kept there, and every later launch is compared with
            it over the whole run.
        allow_changed: Names of differences to accept.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ResumeError: A state does not fit.
    """

    config: str = ""
    seq_length: int = 0
    valid: str | None = None
    test: str | None = None
    state: str = ""
    model_inputs: list[str] = field(default_factory=list)
    allow_changed: list[str] = field(default_factory=list)
    dataloader_type: str | None = "single"

    def build_datasets(self, context: Any) -> tuple[Any, Any, Any]:
        """The three datasets, without an end; None for one without a configuration.

        Bridge calls this on all ranks, which compare their training data.
        """
        if self.dataloader_type != "single":
            raise ConfigError(
                "dataloader_type",
                repr(self.dataloader_type),
                "'single': cyclic and batch shuffle the samples again, and external starts at the first one after "
                "each restart",
                'set dataloader_type="single"',
            )
        if not self.config or not self.seq_length or not self.state:
            raise ConfigError(
                "ConceptProvider",
                f"no {'config' if not self.config else 'seq_length' if not self.seq_length else 'state'}",
                "config, seq_length and state",
                "pass config, seq_length and state to ConceptProvider",
            )
        partition = Partition(micro_batch_size=1, dp_size=1)
        opened = self._open(self.config)
        run = TrainingRun(opened, BRIDGE, partition=partition, rule=None, allow_changed=self.allow_changed)
        run.require_known()
        blend, start = run.blend, run.count_start
        check_tensors(self.model_inputs, batch_layout(blend), BRIDGE)
        require_same("training data", blend.facts(first=start))
        train = self._checked(blend, start)
        if _first_rank():
            run.look_ahead()
        samples = BridgeSamples(train, self.model_inputs, self.allow_changed)
        return samples, self._evaluated("valid"), self._evaluated("test")

    def _evaluated(self, name: str) -> BridgeSamples | None:
        path = getattr(self, name)
        if path is None:
            return None
        blend = self._open(path)
        check_no_run(blend, name)
        one_pass = blend.order.num_samples if isinstance(blend.order, Sequential) else _ENDLESS
        return BridgeSamples(blend, self.model_inputs, period=one_pass)

    def _open(self, path: str) -> Blend:
        return open_blend(load_config(path).with_seq_len(self.seq_length))

    def _checked(self, blend: Blend, start: int) -> Blend:
        """The blend as the continuation of the run whose order lies in the file, which the first launch writes.

        start: samples that another trainer has trained, before those that Bridge counts.
        """
        path = Path(self.state) / FILE_NAME
        if path.exists():
            try:
                data = json.loads(path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise ResumeError(
                    path,
                    f"corrupt ({error})",
                    "the order spec that the run's first launch wrote",
                    f"restore {path} from a copy",
                ) from error
            saved = OrderState.read(data, str(path))
            begun = saved.count("count_start", str(path), 0)
            if begun != start:
                raise ResumeError(
                    "continue_from",
                    f"the run begins at sample {start}",
                    f"{begun}, as at its first launch: Bridge's count of samples would be one of others",
                    "restore continue_from, and the checkpoint that it names",
                )
            return blend.resume(saved.spec, start + _ENDLESS, allow_changed=self.allow_changed)
        if _first_rank():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(str(path), json.dumps(OrderState(spec=blend.spec, more={"count_start": start}).leaf()).encode())
        return blend
