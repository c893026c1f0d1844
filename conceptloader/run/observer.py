"""Who looks at the micro batches of a run without changing them: metrics, and what others add.

The core knows none of them. The module of a key appends what makes an observer of a run to OBSERVERS; it is
imported where its key of the configuration is true (config/add_ons.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Track = Callable[[int, dict[str, float]], object] | None
"""Takes the number of a step, from 0, and values by name to the trainer's loggers; None where it has none."""


class Observer(Protocol):
    """Of one run on one rank, from where it was made or resumed.

    `OBSERVERS.append(MyObserver)` has `MyObserver(run)` made for every training of this process whose loop begins
    later; evaluations are not observed. `run` is a TrainingRun: `run.plan` has the steps, `run.blend` the data in
    force, `run.dp_rank` and `run.directory` say which rank this is and where its run log is.
    """

    def begins(self, consumed: int, track: Track) -> bool:
        """A loop begins at the sample `consumed`, maybe before what was yielded already, which then comes again.

        Args:
            consumed: Samples over all ranks before it.
            track: Where numbers may go.

        Returns:
            Whether `read` and `yielded` are called in this loop.
        """

    def read(self, batch: Mapping[str, Any]) -> Any:
        """A micro batch was read, before batch_transform. Called in the threads that read, several at once.

        Some batches are never yielded: those prefetched when a loop ends, or when weights change.

        Args:
            batch: Its arrays, see docs/batch-keys.md; in Megatron-LM and nanotron the `loss_mask` alone, a tensor,
                where this rank has it.

        Returns:
            What `yielded` is given as `note`.
        """

    def yielded(self, position: int, consumed: int, note: Any, waited_s: float, ready: int) -> None:
        """The micro batch of `note` is about to be yielded. Called in the thread that trains, in the order of the run.

        In nanotron its step has been trained: pipeline ranks take their micro batches at different times.

        What is raised ends the loop; the next one, or a resumed run, begins with this micro batch, of which observers
        that come earlier are then told again.

        Args:
            position: Of one of its samples in the run; after the end for what pads a last batch.
            consumed: Samples over all ranks, with those of this micro batch.
            note: What `read` returned for it.
            waited_s: How long the trainer waited for it.
            ready: Micro batches prefetched after it.
        """


OBSERVERS: list[Callable[[Any], Observer]] = []
"""Of this process, in the order in which they are told."""
