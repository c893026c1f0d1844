"""The order spec: everything that decides which sample comes when, as plain data to keep with a checkpoint.

No paths, no loader options: moving the data, or reading it with more threads, changes nothing here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from conceptloader.base.checks import as_count, as_integer
from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import Saved, build, plain
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.mixture import FORGOTTEN, ORDER_VERSION, Mixture
from conceptloader.order.phases import Phase, Ramp, checked_phases, without_ramps
from conceptloader.order.sequential import Sequential
from conceptloader.order.skips import Skip, Skips
from conceptloader.order.weights import exact_weights

VERSIONS = {"spec_version": 1, "order_version": ORDER_VERSION}
SAVED_VERSION = 2
"""Of all that a run keeps: states, run logs and batch logs. Until 1.0 a release reads its own version alone."""
_OPTIONAL: dict[str, Any] = {"ramps": [], "columns": {}, "origin": None}  # not saved where a spec has none
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


@dataclass(frozen=True, kw_only=True)
class Origin(Saved):
    """What a spec keeps of the phases before the one in force, once weights were set live.

    start: global sample at which the phase in force began. number: phases before it. counts: member -> its draws
    before it, of those that have any. chain: of the phases before it, see `link`.
    """

    start: int
    number: int
    counts: dict[str, int]
    chain: str


@dataclass(frozen=True, kw_only=True)
class RampSteps(Saved):
    """Phases that were one ramp in the configuration: from the one that starts at `first` to that at `last`."""

    first: int
    last: int
    ramp: Ramp


@dataclass(frozen=True)
class LoggedPhase:
    """A phase of a run, as its log has it.

    phase: with names of members. counts: draws of each before it, of those with any; None to compute them. why: its
    weights were set. losses: see WeightsSet in runlog.py.
    """

    phase: Phase
    counts: Mapping[str, int] | None
    why: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)


def link(chain: str, phase: Phase, live: bool) -> str:
    """The chain with one more phase: a fingerprint that covers it and all before. It is "" before the first one."""
    return fingerprint([chain, plain(phase), live])


@dataclass(frozen=True, kw_only=True)
class OrderSpec(Saved):
    """The order of a run from its first sample on.

    Attributes:
        seed: Of the configuration.
        block: Of the configuration, in samples.
        members: By name; the name is the dataset's, or "name@seq_len" for the windows that it was cut into after a
            change of sequence length. Names, not their sequence, decide the order.
        phases: Increasing starts in global samples, the first 0; weights by member name, kept as the smallest integers
            in the same proportion. Empty unless order is "shuffled". One with a ramp is replaced by phases, and noted.
        skips: Of the trainer's sample index.
        quarantine: Dataset -> fingerprint of its ranges that are never read; changes the loss mask, never the order.
        order: "shuffled", "sequential" or "megatron".
        base: Consumed samples at which the present configuration took over from an earlier one whose phases, members
            and skips stand in front (a later data stage, a new sequence length); 0 if there was none.
        extra: Anything else that decides every sample, such as fingerprints of Megatron's index files.
        live: Starts of those phases which were set while the run was going, and are in no configuration.
        origin: Where the order begins that this spec says, None for at sample 0. Of the phases before, those of the
            configuration are kept, to be compared.
        ramps: Which phases were one ramp, in order; for messages, and because weights that are set live end a ramp.
        exclude: Dataset -> (at, fingerprint) of what is excluded from the trainer's sample `at` on; as little does it
            change the order.
        columns: Name -> dataset -> fingerprint, of columns that batches hold; they do not change the order.

    Raises:
        ConfigError: For weights of unknown members and for all that Mixture rejects.
    """

    seed: int
    block: int
    members: Mapping[str, Member]
    phases: tuple[Phase, ...] = ()
    skips: tuple[Skip, ...] = ()
    quarantine: Mapping[str, str] = field(default_factory=dict)
    order: OrderKind = "shuffled"
    base: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    live: tuple[int, ...] = ()
    exclude: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    origin: Origin | None = None
    ramps: tuple[RampSteps, ...] = ()
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.order not in get_args(OrderKind):
            raise ConfigError(
                "order", repr(self.order), f"one of {get_args(OrderKind)}", "omit order, or set one of these"
            )
        if bool(self.phases) != (self.order == "shuffled"):
            raise ConfigError(
                "phases",
                f"{len(self.phases)} phases with order {self.order}",
                "phases with order shuffled, and none with another order",
                "set order: shuffled, or omit phases",
            )
        as_integer(self.seed, "seed")
        as_integer(self.block, "block")
        as_count(self.base, "base", 0)
        phases = []
        for phase in checked_phases(self.phases):
            where = f"phases.{phase.start}.weights"
            unknown = sorted(set(phase.weights) - set(self.members))
            if unknown:
                raise ConfigError(
                    where,
                    f"no datasets named {unknown}",
                    f"some of {sorted(self.members)}",
                    f"correct {where}, or name these under `datasets`",
                )
            phases.append(replace(phase, weights=exact_weights(phase.weights, where)))
        steps = without_ramps(phases)
        begun = [
            RampSteps(first=some[0].start, last=some[-1].start, ramp=phase.ramp)
            for phase, some in zip(phases, steps, strict=True)
            if phase.ramp is not None
        ]
        phases = [step for some in steps for step in some]
        if "split_documents" in self.extra:  # YAML has 0 and 0.0, which are the same split
            split = [float(one) for one in self.extra["split_documents"]]
            object.__setattr__(self, "extra", {**self.extra, "split_documents": split})
        object.__setattr__(self, "members", dict(sorted(self.members.items())))
        object.__setattr__(self, "phases", tuple(phases))
        object.__setattr__(self, "ramps", (*self.ramps, *begun))
        object.__setattr__(self, "skips", Skips(self.skips).skips)
        object.__setattr__(self, "live", tuple(self.live))
        if not set(self.live) <= {phase.start for phase in phases}:
            raise ConfigError("live", list(self.live), "starts of phases")
        if self.begins not in [phase.start for phase in self.phases] + [0]:
            raise ConfigError(
                "phases",
                f"no phase that starts at global sample {self.begins}",
                "the phase in force there",
                f"put the phase with start: {self.begins} back under `phases`",
            )

    @property
    def begins(self) -> int:
        """The global sample from which on this spec says the order."""
        return 0 if self.origin is None else self.origin.start

    @property
    def deciding(self) -> list[Phase]:
        """The phases from there on."""
        return [phase for phase in self.phases if phase.start >= self.begins]

    def ramp_at(self, start: int) -> RampSteps | None:
        """The ramp of which the phase that starts there is a step, but not the first."""
        return next((one for one in self.ramps if one.first < start <= one.last), None)

    def ended(self, at: int) -> range:
        """Where the phases start that are gone once weights are set live from `at` on: those left of a ramp there."""
        ramp = self.ramp_at(at)
        return range(0) if ramp is None else range(at, ramp.last + 1)

    @cached_property
    def hash(self) -> str:
        """32 hexadecimal digits; equal for equal orders, wherever their past was cut."""
        data = self.to_dict()
        if self.live or self.origin:
            # Which steps of a ramp were in force is known to the chain alone, once the weights that ended it are cut.
            planned = [plain(p) for p in self.phases if p.start not in self.live and self.ramp_at(p.start) is None]
            data |= {"phases": planned, "live": self.chain, "origin": None}
        return fingerprint(data)

    @cached_property
    def chain(self) -> str:
        """Of all phases of the run; see `link`."""
        return self._linked(self.deciding)

    def _linked(self, phases: Iterable[Phase]) -> str:
        chain = "" if self.origin is None else self.origin.chain
        for phase in phases:
            chain = link(chain, phase, phase.start in self.live)
        return chain

    def build(
        self, max_epochs: Mapping[str, float | None] | None = None, logged: Sequence[LoggedPhase] = ()
    ) -> Mixture | Sequential:
        """The order itself; dataset k is the k-th member by name.

        max_epochs: by dataset name, for check_run only.
        logged: phases of the run up to its end; those before the first of them, or without any before the origin, are
            not known.
        """
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
        past = [one for one in logged if one.phase.start < self.begins]
        counted: dict[int, Mapping[str, int] | None] = {one.phase.start: one.counts for one in past}
        counted[self.begins] = {} if self.origin is None else self.origin.counts
        return Mixture(
            sizes=sizes,
            names=names,
            phases=[*(one.phase for one in past), *self.deciding],
            drawn={at: [some.get(name, 0) for name in names] for at, some in counted.items() if some is not None},
            skips=self.skips,
            seed=self.seed,
            block=self.block,
            max_epochs=[(max_epochs or {}).get(one.dataset) for one in self.members.values()],
        )

    def decided(self, consumed: int) -> int:
        """How many global samples (skipped ones included) precede a position of `consumed` trainer samples."""
        return Skips(self.skips).global_index(consumed - 1) + 1 if consumed else 0

    def with_phase(self, phase: Phase) -> "OrderSpec":
        """With a phase that was set while the run was going; those of the configuration that start later stay.

        It ends a ramp that is in progress there.

        Raises:
            ConfigError: Unless it starts after all that were set before, and where no other starts.
        """
        if self.order != "shuffled":
            raise ConfigError("weights", f"order {self.order}", "shuffled", "omit weights, or set order: shuffled")
        if self.live and phase.start <= self.live[-1]:
            raise ConfigError(
                "weights",
                f"a start at global sample {phase.start}",
                f"more than {self.live[-1]}, where the weights that were set last begin",
                "pass set_weights at= a later sample",
            )
        ended = self.ended(phase.start)
        planned = [one for one in self.phases if one.start not in ended]
        if any(phase.start == one.start for one in planned):
            raise ConfigError(
                "weights",
                f"a start at global sample {phase.start}, where a phase of the configuration starts",
                "a sample where no phase starts",
                "pass set_weights at= another sample, or change phases",
            )
        phases = sorted([*planned, phase], key=lambda one: one.start)
        return replace(self, phases=tuple(phases), live=(*self.live, phase.start))

    def cut(self, consumed: int, order: Mixture | Sequential) -> "OrderSpec":
        """Without what no sample after `consumed` needs: weights set live before those in force there.

        order: what `build` made of this spec. Raises ConfigError for a position that the spec has forgotten itself.
        """
        if not (self.live or self.origin):
            return self
        phases = [phase for phase in self.deciding if phase.start <= self.decided(consumed)]
        if not phases:
            raise ConfigError(
                "order",
                f"{consumed} samples, global sample {self.decided(consumed)}",
                f"a position from global sample {self.begins} on",
                FORGOTTEN,
            )
        return self.cut_at(phases[-1].start, order)

    def cut_at(self, start: int, order: Mixture | Sequential) -> "OrderSpec":
        """From the phase on that begins at `start`. order: what `build` made of this spec."""
        if start == self.begins:
            return self
        assert isinstance(order, Mixture), "others have no phases"
        passed = [phase for phase in self.deciding if phase.start < start]
        base = order.drawn_before(start)
        before = self.origin or Origin(start=0, number=0, counts={}, chain="")
        return replace(
            self,
            phases=tuple(phase for phase in self.phases if phase.start >= start or phase.start not in self.live),
            live=tuple(one for one in self.live if one >= start),
            origin=Origin(
                start=start,
                number=before.number + len(passed),
                counts={name: draws for name, draws in zip(self.members, base, strict=True) if draws},
                chain=self._linked(passed),
            ),
        )

    def phases_before(self, consumed: int) -> list[Phase]:
        """The phases that decided any of the first `consumed` samples."""
        return [phase for phase in self.phases if phase.start < self.decided(consumed)]

    def draws_before(self, consumed: int) -> dict[str, int]:
        """Member name -> its draws in the first `consumed` samples, skipped ones included; only members with any.

        In the other orders, where this is not known here, every member counts with all its windows.
        """
        if self.order != "shuffled":
            return {name: member.windows for name, member in self.members.items()}
        counts = replace(self, skips=()).build().counts(self.decided(consumed))
        return {name: draws for name, draws in zip(self.members, counts, strict=True) if draws}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, the form that is saved."""
        data = {**VERSIONS, **plain(self)}
        return {key: value for key, value in data.items() if value or key not in _OPTIONAL}

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
            return build(cls, {**_OPTIONAL, **{key: data[key] for key in data.keys() - VERSIONS.keys()}}, "")
        except ConfigError as error:
            raise ResumeError(
                "saved order spec",
                f"a corrupt spec ({error})",
                "the spec of an order",
                "pass the state of another checkpoint",
            ) from error
