"""The samples of a split in an order of ours, and how a run goes on with those of its checkpoint."""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conceptloader.base.hashing import derive_key
from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import RANDOM, decide_layout, open_reader
from conceptloader.blend import Blend
from conceptloader.errors import ResumeError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.resume import ChangedPast
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState

from .dataset import Reader, SampleRules
from .options import wanted
from .takeover_reader import StockSplit

logger = logging.getLogger(__name__)

WHERE = "conceptloader's state in the checkpoint"
NO_STATE = "loader"  # the name under which a checkpoint without our state is accepted
ORDER = "order"  # the name under which a run of Megatron's own samples goes on with those of ours


@dataclass(frozen=True)
class OurSplit:
    """The samples of a split in an order of ours. Those taken over from Megatron are a takeover_reader.StockSplit.

    shared: arrays of batches with concepts, for the training and all of its evaluation alike.
    """

    blend: Blend
    rules: SampleRules
    shared: BatchLayout | None = None

    @property
    def spec(self) -> OrderSpec:
        return self.blend.spec

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        """By name."""
        return self.blend.datasets

    @property
    def one_pass(self) -> int:
        """Samples of all datasets together."""
        return sum(view.count for view in self.blend.views if view is not None)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError if a run of `num_samples` samples is longer than the data may give."""
        self.blend.order.check_run(num_samples)

    def resumed(self, saved: OrderSpec, consumed: int, accept: Collection[str]) -> "OurSplit":
        """The split with which a run goes on. Raises ResumeError if its past has changed."""
        return dataclasses.replace(self, blend=self.blend.resume(saved, consumed, allow_changed=accept))

    def layout(self, concepts: bool, others: Sequence[Blend] = ()) -> BatchLayout:
        """Arrays of a batch, with or without the concept tensors, which hold the samples of `others` too."""
        config = self._blend(concepts).config
        views = [view for blend in (self.blend, *others) for view in blend.views]
        layout = decide_layout(views, self.rules.seq_length, config.outputs, config.concepts)
        return dataclasses.replace(layout, random_key=derive_key(config.seed, RANDOM))

    def reader(self, concepts: bool) -> Reader:
        """Reads samples by their index."""
        return open_reader(self._blend(concepts), layout=self.shared if concepts else None)

    def _blend(self, concepts: bool) -> Blend:
        config = wanted(self.blend.config, concepts)
        borders = config.outputs.loss_mask_borders or self.rules.eod_mask_loss
        outputs = dataclasses.replace(config.outputs, cu_seqlens=self.rules.needs_borders, loss_mask_borders=borders)
        return dataclasses.replace(self.blend, config=dataclasses.replace(config, outputs=outputs))


SampleSource = OurSplit | StockSplit


def stock_order(saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]) -> bool:
    """Whether a run without a configuration goes on with the samples of Megatron's own loader, as it began."""
    if not consumed or {ORDER, NO_STATE} & set(accept):
        return False
    return saved is None or OrderState.read(saved, WHERE).spec.order == "megatron"


def continued(
    split: SampleSource, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]
) -> SampleSource:
    """The split with which a run goes on from a checkpoint at `consumed` samples, `saved` being our state in it.

    `order: megatron` is meant to go on from a checkpoint of Megatron's own loader, which has none.

    Raises ResumeError if what decided the consumed samples has changed, or is not known: the state is missing, damaged,
    of a later release, or of another position.
    """
    if not consumed:
        return split
    if saved is not None:
        state = OrderState.read(saved, WHERE)
        if state.consumed not in (None, consumed):
            raise ResumeError(
                f"{WHERE}: saved at {state.consumed} consumed samples, but the run goes on at {consumed}; take the "
                "state and the count from one checkpoint. For a state at another position ask "
                "MegatronData.state(consumed)"
            )
        if state.spec.order == "megatron" != split.spec.order:
            if ORDER not in accept:
                raise ResumeError(
                    f"order: the first {consumed} samples were those of Megatron's own loader, and the configuration "
                    "has an order of ours; keep `order: megatron` and the command line of that run. Where its index "
                    f"files end, go on with sample {consumed} of ours: --conceptloader-accept {ORDER}"
                )
            logger.warning("the first %d samples were Megatron's; windows of ours may hold tokens of theirs", consumed)
            return split
        try:
            return split.resumed(state.spec, consumed, accept)
        except ChangedPast as error:
            raise ResumeError(f"{error.refusal}--conceptloader-accept {' '.join(error.keys)}") from error
    if split.spec.order == "megatron":
        logger.info("taking over a run of Megatron's own loader at %d consumed samples", consumed)
    elif NO_STATE in accept:
        logger.warning("the first %d samples came from another loader, as accepted", consumed)
    else:
        raise ResumeError(
            f"checkpoint: found {consumed} consumed samples without a state of conceptloader, so another loader chose "
            "them; expected one of ours. To go on with the samples of Megatron's loader use `order: megatron`; "
            f"to go on with sample {consumed} of this configuration, accept the difference by its name, {NO_STATE}"
        )
    return split
