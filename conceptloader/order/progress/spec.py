"""The order spec: everything that decides which sample comes when, as plain data to keep with a checkpoint.

No paths, no loader options: moving the data, or reading it with more threads, changes nothing here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from conceptloader.base.checks import as_count, as_integer
from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import Saved, build, plain
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.mixture import FORGOTTEN, ORDER_VERSION, Mixture, Sequential
from conceptloader.order.segments import Segment, ordered, origins

VERSIONS = {"spec_version": 1, "order_version": ORDER_VERSION}
SAVED_VERSION = 3
"""Of all that a run keeps: states and run logs. Until 1.0 a release reads its own version alone."""
KEPT = 64
"""The last changes of weights whose order a run still knows."""
OrderKind = Literal["shuffled", "sequential", "megatron"]
Overflow = Literal["split", "crop", "refuse"]


@dataclass(frozen=True, kw_only=True)
class PackingRule(Saved):
    """How documents become packs, see docs/packing.md."""

    bins: int
    overflow: Overflow


@dataclass(frozen=True, kw_only=True)
class Member(Saved):
    """One dataset, cut into windows in one way.

    dataset: its name in the configuration. seq_len: tokens of a window or a pack, None where a sample is a document.
    windows: how many there are in token_range = [first, last + 1).
    packing: how documents are packed, None where a sample is no pack.
    tracks_fingerprint: of its concepts and other tracks, which may change without changing the order.
    """

    dataset: str
    seq_len: int | None
    windows: int
    stream_fingerprint: str
    token_range: tuple[int, int]
    tracks_fingerprint: str = ""
    packing: PackingRule | None = None

    def __post_init__(self) -> None:
        as_count(self.windows, f"datasets.{self.dataset}.windows", 0)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides which tokens a draw is."""
        return {name: value for name, value in plain(self).items() if name != "tracks_fingerprint"}


def chained(chain: str, live: Iterable[Segment]) -> str:
    """A fingerprint of all weights set live, from that of those before; "" is of none."""
    for one in live:
        chain = fingerprint([chain, one.at, dict(one.weights), dict(one.drawn or {})])
    return chain


@dataclass(frozen=True, kw_only=True)
class OrderSpec(Saved):
    """The order of a run from its first sample on.

    Attributes:
        seed: Of the configuration.
        block: Of the configuration, in samples.
        members: By name; the name is the dataset's, or "name@seq_len" for the windows that it was cut into after a
            change of sequence length. Names, not their sequence, decide the order.
        segments: Weights by member name, and jumps, in order; empty unless order is "shuffled".
        quarantine: Dataset -> fingerprint of its ranges that are never read; changes the loss mask, never the order.
        order: "shuffled", "sequential" or "megatron".
        base: Consumed samples at which the present configuration took over from an earlier one whose segments and
            members stand in front (a later data stage, a new sequence length); 0 if there was none.
        extra: Anything else that decides every sample, such as fingerprints of Megatron's index files.
        exclude: Dataset -> (at, fingerprint) of what is excluded from the trainer's sample `at` on; as little does it
            change the order.
        columns: Name -> dataset -> fingerprint, of columns that batches hold; they do not change the order.
        forgotten: See `chained`, of weights that were set live and are not among `segments` any more.

    Raises:
        ConfigError: For weights of unknown members and for all that Mixture rejects.
    """

    seed: int
    block: int
    members: Mapping[str, Member]
    segments: tuple[Segment, ...] = ()
    quarantine: Mapping[str, str] = field(default_factory=dict)
    order: OrderKind = "shuffled"
    base: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    exclude: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    forgotten: str = ""

    def __post_init__(self) -> None:
        if self.order not in get_args(OrderKind):
            raise ConfigError(
                "order", repr(self.order), f"one of {get_args(OrderKind)}", "omit order, or set one of these"
            )
        if bool(self.segments) != (self.order == "shuffled"):
            raise ConfigError(
                "phases",
                f"{len(self.segments)} segments with order {self.order}",
                "segments with order shuffled, no segments with another order",
                "set order: shuffled, or omit phases",
            )
        as_integer(self.seed, "seed")
        as_integer(self.block, "block")
        as_count(self.base, "base", 0)
        object.__setattr__(self, "members", dict(sorted(self.members.items())))
        if self.segments:
            object.__setattr__(self, "segments", ordered(self.segments, self.members))
        if self.forgotten and not self.live:
            raise ConfigError("segments", "none that was set live", "a segment with `drawn`")

    @cached_property
    def live(self) -> list[Segment]:
        """Weights that were set while the run was going, and are in no configuration."""
        return [one for one in self.segments if one.drawn is not None]

    @cached_property
    def planned(self) -> list[Segment]:
        """The others: of the configuration, and of those before it."""
        return [one for one in self.segments if one.drawn is None]

    @property
    def begins(self) -> int:
        """The sample from which on this spec says the order."""
        return self.live[0].at if self.forgotten else 0

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits; equal for equal orders, also where weights set live are forgotten."""
        listed = [it for it in zip(origins(self.segments), self.segments, strict=True) if it[1].drawn is None]
        live = chained(self.forgotten, self.live)
        data = {
            **self.to_dict(),
            "phases": [{"start": start, "weights": dict(one.weights)} for start, one in listed if one.weights],
            "skips": [{"at": one.at, "count": one.skip} for _, one in listed if one.skip],
            "live": [live] if live else [],
        }
        return fingerprint({key: data[key] for key in data.keys() - {"segments", "forgotten"}})

    def build(self, max_epochs: Mapping[str, float | None] | None = None) -> Mixture:
        """The order itself; dataset k is the k-th member by name. max_epochs: by dataset name, for check_run only."""
        names = list(self.members)
        sizes = [member.windows for member in self.members.values()]
        if self.order == "sequential":
            return Sequential(sizes, names)
        if self.order != "shuffled":
            raise ConfigError(
                "order",
                f"{self.order}",
                "an order that is not of one framework alone",
                f"start the run with the adapter for {self.order}",
            )
        return Mixture(
            sizes=sizes,
            names=names,
            segments=self.segments,
            seed=self.seed,
            block=self.block,
            max_epochs=[(max_epochs or {}).get(one.dataset) for one in self.members.values()],
            forgotten=bool(self.forgotten),
        )

    def with_live(self, segment: Segment, order: Mixture) -> "OrderSpec":
        """With weights that are set while the run is going, until the next of the configuration; they end a ramp.

        order: what `build` made of this spec.

        Raises:
            ConfigError: Unless they begin after all that were set before, and where none of the configuration do.
        """
        if self.order != "shuffled":
            raise ConfigError("weights", f"order {self.order}", "shuffled", "omit weights, or set order: shuffled")
        if self.live and segment.at <= self.live[-1].at:
            raise ConfigError(
                "weights",
                f"a start at sample {segment.at}",
                f"more than {self.live[-1].at}, where the weights that were set last begin",
                "pass set_weights at= a later sample",
            )
        if any(segment.at == one.at and one.weights and not one.ramp for one in self.planned):
            raise ConfigError(
                "weights",
                f"a start at sample {segment.at}, where a phase of the configuration starts",
                "a sample where no phase starts",
                "pass set_weights at= another sample, or change phases",
            )
        return self.with_drawn(segment, order)

    def with_drawn(self, segment: Segment, order: Mixture) -> "OrderSpec":
        """With weights set live, wherever they begin; see with_live."""
        counts = zip(order.names, order.counts(segment.at), strict=True)
        live = replace(segment, drawn={name: draws for name, draws in counts if draws})
        return replace(self, segments=(*self.segments, live))

    def cut(self, consumed: int) -> "OrderSpec":
        """Without weights set live before those that decided the last of the first `consumed` samples.

        Raises ConfigError for a position that the spec has forgotten itself.
        """
        if self.forgotten and consumed <= self.begins:
            raise ConfigError("order", f"{consumed} samples", f"a position after sample {self.begins}", FORGOTTEN)
        gone = [one for one in self.live if one.at < consumed][:-1]
        if not gone:
            return self
        kept = tuple(one for one in self.segments if one.drawn is None or one.at > gone[-1].at)
        return replace(self, segments=kept, forgotten=chained(self.forgotten, gone))

    def draws_before(self, consumed: int) -> dict[str, int]:
        """Member name -> its draws in the first `consumed` samples, skipped ones included; only members with any.

        In the other orders, where this is not known here, every member counts with all its windows.
        """
        if self.order != "shuffled":
            return {name: member.windows for name, member in self.members.items()}
        past = replace(self, segments=tuple(one for one in self.segments if one.at < consumed))
        counts = zip(self.members, past.build().counts(consumed), strict=True)
        return {name: draws for name, draws in counts if draws}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, the form that is saved."""
        data = {**VERSIONS, **plain(self)}
        return {key: value for key, value in data.items() if value or key != "columns"}

    @classmethod
    def from_dict(cls, data: Any) -> "OrderSpec":
        """Inverse of to_dict.

        Raises:
            ResumeError: For data that are corrupt, of another version, or no spec.
        """
        if not isinstance(data, Mapping) or not VERSIONS.keys() <= data.keys():
            raise ResumeError(
                "saved order spec",
                repr(str(data)[:80]),
                f"an object with {list(VERSIONS)}",
                "pass the state of another checkpoint",
            )
        for key, known in VERSIONS.items():
            if type(data[key]) is not int or data[key] != known:
                raise ResumeError(
                    f"saved order spec: {key}",
                    repr(data[key]),
                    str(known),
                    "resume with the release of conceptloader that wrote the checkpoint",
                )
        try:
            return build(cls, {"columns": {}, **{key: data[key] for key in data.keys() - VERSIONS.keys()}}, "")
        except ConfigError as error:
            raise ResumeError(
                "saved order spec",
                f"a corrupt spec ({error})",
                "the spec of an order",
                "pass the state of another checkpoint",
            ) from error
