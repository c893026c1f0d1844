"""Resuming: only what decided the samples before the position must be as it was; everything ahead is free to change."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.spec import Member, OrderSpec, chained
from conceptloader.order.segments import Segment, in_force, ordered

logger = logging.getLogger(__name__)

_DRAWS = ("order", "seed", "block", "phases", "skips")  # what decides how often datasets are drawn


@dataclass(frozen=True)
class Difference:
    """One value that decided past samples and is another one now. `key` is its name in `allow_changed`."""

    key: str
    saved: Any
    current: Any

    def is_allowed(self, keys: Collection[str]) -> bool:
        """Whether one of `keys` is its name, or the beginning of it."""
        return any(self.key == key or self.key.startswith(f"{key}.") for key in keys)

    def __str__(self) -> str:
        return f"{self.key}: saved {self.saved}, now {self.current}"


def compare(saved: OrderSpec, current: OrderSpec, consumed: int) -> list[Difference]:
    """What differs between two specs in deciding the first `consumed` samples. Empty: they agree on every one.

    Segments, members and exclusions that start at `consumed` or later are not looked at, nor are tracks,
    columns and tokens that are never read.
    """
    found = _compared(saved, current, consumed) if consumed else ()
    return [one for one in found if one.saved != one.current]


def _compared(saved: OrderSpec, current: OrderSpec, consumed: int) -> Iterator[Difference]:
    """All that decides the first `consumed` samples, whether it differs or not."""
    both = saved, current
    scalars = ("order", "seed", "block") if saved.order == "shuffled" else ("order",)
    for key in scalars:
        yield Difference(key, getattr(saved, key), getattr(current, key))
    for key in sorted({*saved.extra, *current.extra}):
        yield Difference(f"extra.{key}", saved.extra.get(key), current.extra.get(key))
    past = [[one for one in spec.planned if one.at < consumed] for spec in both]
    yield Difference("skips", *([(one.at, one.skip) for one in of if one.skip] for of in past))
    live = ([one for one in spec.live if one.at < consumed] for spec in both)
    yield Difference("weights set live", *(chained(spec.forgotten, of) for spec, of in zip(both, live, strict=True)))
    drawn = saved.draws_before(consumed)
    for name in sorted({*saved.exclude, *current.exclude} & set(drawn) & set(current.members)):
        old, new = ([one for one in spec.exclude.get(name, ()) if one[0] < consumed] for spec in both)
        yield Difference(f"exclude.{name}", old, new)
    for name in drawn:
        yield from _member_differences(name, saved.members[name], current.members.get(name))
    yield from _phase_differences(*([one for one in of if one.weights] for of in past))


def _phase_differences(saved: Sequence[Segment], current: Sequence[Segment]) -> Iterator[Difference]:
    """By the phases of the configuration: of a ramp, its first step that differs."""
    yield Difference("phases", *([one.at for one in of if not one.ramp] for of in (saved, current)))
    old, new = ({one.at: one for one in of} for of in (saved, current))
    told, first, was, now = set[int](), 0, old.get(0), new.get(0)
    for at in sorted(old.keys() | new.keys()):
        was, now = old.get(at, was), new.get(at, now)
        first = at if any(not of[at].ramp for of in (old, new) if at in of) else first
        if was and now and was.weights != now.weights and first not in told:
            told.add(first)
            yield from _weight_differences(first, was.weights, now.weights)


def _member_differences(name: str, saved: Member, current: Member | None) -> Iterator[Difference]:
    if current is None:
        yield Difference(f"datasets.{name}", "present", "absent")
        return
    old, new = saved.identity, current.identity
    for key in old | new:
        yield Difference(f"datasets.{name}.{key}", old.get(key), new.get(key))


def _weight_differences(start: int, saved: Mapping[str, float], current: Mapping[str, float]) -> Iterator[Difference]:
    totals = [(weights, Fraction(sum(weights.values()))) for weights in (saved, current)]
    for name in sorted({*saved, *current}):
        old, new = (_readable(Fraction(weights.get(name, 0)) / total) for weights, total in totals)
        yield Difference(f"phases.{start}.weights.{name}", old, new)


def _readable(share: Fraction) -> str:
    return str(share) if share.denominator < 10**6 else f"{float(share):.15g}"


def resume(
    saved: OrderSpec,
    current: OrderSpec,
    consumed: int,
    *,
    allow_changed: Collection[str] = (),
    new_stage: bool = False,
) -> OrderSpec:
    """The spec with which a run that has consumed `consumed` samples resumes: save this one with the next checkpoint.

    saved: from the checkpoint; current: from the configuration as it is now.
    allow_changed: keys of differences that are accepted, "seed" or "datasets.web.windows", or the beginning of some,
        "datasets.web". The run then continues as if the new value had always been there.
    new_stage: the configuration is another one on purpose from this position on (a data stage): its segments and
        members follow those before, and every dataset's draws continue where they were.
    A dataset that is cut at another sequence length than before becomes a member of its own, from its first draw.
    Mid-epoch that reads tokens again, unless the token range is disjoint from the one read before, or no weights ahead
    name the dataset: the difference "seq_len" is to be allowed, which says how much.

    Raises ResumeError that lists each difference with both values.
    Changed tracks and columns, and tokens that are never read, are logged as warnings.
    """
    if saved.forgotten and consumed <= saved.begins:
        raise ResumeError(
            "position",
            f"{consumed} consumed samples",
            f"a position after sample {saved.begins}: of the weights set live those before are not known",
            "pass the state of an earlier checkpoint",
        )
    old, new = _seq_lens(saved, current, consumed)
    stage, shares = consumed if new_stage or old != new else saved.base, reread_shares(saved, current, consumed)
    current = splice(saved, current, stage, consumed, () if new_stage else _live(saved, current))
    ahead = {name for one in in_force(current.segments) if one.at >= stage for name in one.weights}
    if old == new:  # what was planned before was accepted before
        ahead -= {name for one in saved.segments for name in one.weights}
    drawn, again = {current.members[name].dataset for name in ahead}, list[Difference]()
    if listed := ", ".join(f"{share:.1%} of {name}" for name, share in sorted(shares.items()) if name in drawn):
        before = old if old != new else "another one before"
        again = [Difference("seq_len", before, f"{new}, mid-epoch, which reads {listed} again")]
    for name in sorted(shares.keys() - drawn) if old != new else ():
        logger.warning("seq_len: weights set live for %s would read %.1f%% of it again", name, 100 * shares[name])
    refused = []
    for difference in [*again, *compare(saved, current, consumed)]:
        if difference.is_allowed(allow_changed):
            counted = [one.at for one in saved.live if one.at < consumed]
            if counted and difference.key.split(".")[0] in _DRAWS:
                raise ResumeError(
                    difference.key,
                    f"{difference.current}",
                    f"{difference.saved}, as saved: weights were set live since, and how often each dataset "
                    f"was drawn before sample {counted[-1]} is counted with the saved value",
                    f"put {difference.key}: {difference.saved} back"
                    + ", or make the change a new stage, from here on"
                    * (difference.key not in ("order", "seed", "block")),
                )
            logger.warning("resuming with a changed past, as allowed: %s", difference)
        else:
            refused.append(difference)
    if refused:
        raise ChangedPast(refused, consumed)
    if consumed:
        _warn(saved, current)
    return current


def splice(saved: OrderSpec, current: OrderSpec, stage: int, consumed: int, live: Sequence[Segment] = ()) -> OrderSpec:
    """`saved` up to sample `stage`, `current` from there on; every dataset's draws continue where they were.

    Of the segments of `current` before, the weights that are in force hold at once. A dataset whose windows are of
    another length becomes the member "name@seq_len". live: of saved, by the names of datasets.

    Raises ConfigError if there are samples before, and one of the two is not shuffled.
    """
    if stage and {saved.order, current.order} != {"shuffled"}:
        raise ConfigError(
            "order",
            f"{current.order}, after {saved.order} in the checkpoint",
            "shuffled at both times, as other orders cannot follow each other",
            f"set order: {saved.order}",
        )
    if current.order != "shuffled":
        return current
    past = [one for one in saved.segments if one.at < stage]
    drawn = saved.draws_before(stage) if stage > saved.begins else dict(saved.live[0].drawn or {}) if stage else {}
    before: dict[str, dict[str, Member]] = {}
    for key in sorted(drawn):
        before.setdefault(saved.members[key].dataset, {})[key] = saved.members[key]
    keys = {name: _member_key(name, member, before.get(name, {})) for name, member in current.members.items()}
    ahead = [one for one in (*current.segments, *live) if one.at > stage or not stage]
    if stage:
        known = [one for one in ordered([*current.segments, *live], current.members) if one.at <= stage]
        planned = [one for one in known if one.weights and one.drawn is None][-1]
        ahead = [
            replace(planned, at=stage, ramp=False),
            *(one for one in known if one.at == stage and (not one.weights or one.drawn is not None)),
            *ahead,
        ]
        active = [one for one in in_force(known) if one.weights][-1]
        if active.drawn is not None and active.at < stage:
            ahead.append(replace(active, at=stage))
    ahead = [replace(one, weights={keys[name]: weight for name, weight in one.weights.items()}) for one in ahead]
    kept = {*drawn, *(name for one in past for name in one.weights)}
    moved = [one for one in ahead if one.drawn is not None and (one.at >= consumed or one.at == stage != saved.base)]
    moved.sort(key=lambda one: one.at)
    spec = replace(
        current,
        members={
            **{name: member for name, member in saved.members.items() if name in kept},
            **{keys[name]: member for name, member in current.members.items()},
        },
        segments=(*past, *(one for one in ahead if one not in moved)),
        base=stage,
        forgotten=saved.forgotten,
    )
    for one in moved:  # other segments before it than in the saved run, maybe
        spec = spec.with_drawn(one, spec.build())
    return spec


def _live(saved: OrderSpec, current: OrderSpec) -> list[Segment]:
    """The weights that were set while the saved run was going, since the last change of its data stage, by dataset.

    Raises ResumeError if `current` lacks a dataset of them, or has a phase in their place.
    """
    found = []
    for one in saved.live:
        if one.at < saved.base:
            continue
        weights = {saved.members[name].dataset: weight for name, weight in one.weights.items()}
        absent, where = sorted(set(weights) - set(current.members)), f"weights set from sample {one.at} on"
        if absent:
            raise ResumeError(
                where,
                f"a configuration without the datasets {absent} of the checkpoint",
                "all datasets of the checkpoint",
                "add them to `datasets` again",
            )
        if one.at > saved.base and any(one.at == it.at and it.weights and not it.ramp for it in current.segments):
            raise ResumeError(where, "a phase there in the configuration", fix="remove this phase from `phases`")
        found.append(replace(one, weights=weights))
    return found


def reread_shares(saved: OrderSpec, current: OrderSpec, consumed: int) -> dict[str, float]:
    """Dataset -> expected share of its first epoch at a new sequence length that broken-off epochs have read already.

    Only datasets with a share above 0: left mid-epoch, and cut at another length over some of the same tokens.
    """
    fresh: dict[str, float] = {}
    old, new = ({one.seq_len for one in of.members.values()} for of in (saved, current))
    if old == new or not consumed or {saved.order, current.order} != {"shuffled"}:
        return fresh
    for name, draws in saved.draws_before(consumed).items():
        was = saved.members[name]
        now = current.members.get(was.dataset)
        if now is None or now.seq_len == was.seq_len:
            continue
        first, last = max(was.token_range[0], now.token_range[0]), min(was.token_range[1], now.token_range[1])
        again = max(0, last - first) / max(1, now.token_range[1] - now.token_range[0])
        fresh[was.dataset] = fresh.get(was.dataset, 1.0) * (1 - draws % was.windows / was.windows * again)
    return {name: 1 - share for name, share in fresh.items() if share < 1}


def _member_key(name: str, member: Member, before: Mapping[str, Member]) -> str:
    """The member name under which a dataset continues: the one it had with these windows, or a new one.

    before: members of this dataset that were drawn.
    """
    for key, old in before.items():
        if old.identity == member.identity:
            return key
    for key, old in before.items():
        if old.seq_len == member.seq_len:
            return key  # other data under an old name: `compare` will say so
    return f"{name}@{member.seq_len}" if before else name


def _seq_lens(saved: OrderSpec, current: OrderSpec, consumed: int) -> tuple[str, str]:
    """Lengths of windows as planned at the position (members of a phase share one) and now, in a shuffled order."""
    if {saved.order, current.order} != {"shuffled"}:
        return "", ""
    planned = [one for one in saved.segments if one.weights and one.at <= consumed][-1]
    old = {saved.members[name].seq_len for name in planned.weights}
    new = {member.seq_len for member in current.members.values()}
    return ", ".join(sorted(map(str, old))), ", ".join(sorted(map(str, new)))


class ChangedPast(ResumeError):
    """What decided past samples has changed. keys: of the differences, by which they are allowed."""

    def __init__(self, refused: Sequence[Difference], consumed: int) -> None:
        lines = "\n".join(f"  {difference}" for difference in refused)
        self.keys = [difference.key for difference in refused]
        replaced = any(key.endswith("stream_fingerprint") for key in self.keys)
        put = "the saved values" if not replaced else "the saved values, and at its path the dataset that was read"
        if any(key.startswith("phases.0.weights.") for key in self.keys):
            lines += "\n(phases.0.weights are the datasets.NAME.weight of a configuration whose phases begin later)"
        self.refusal = (
            f"what decided the first {consumed} samples has changed since the checkpoint:\n{lines}\n"
            f"Put back {put}. What is meant for the samples ahead goes into a phase, a skip or an exclude at "
            f"{consumed} or later, or a dataset of another name. To train on as if the new values had always been "
            "there, allow them by name: "
        )
        super().__init__("", self.refusal + f"allow_changed={json.dumps(self.keys)}")


def _warn(saved: OrderSpec, current: OrderSpec) -> None:
    for name, old in saved.members.items():
        new = current.members.get(name)
        if new is not None and new.tracks_fingerprint != old.tracks_fingerprint:
            logger.warning(
                "datasets.%s: its tracks have changed since the checkpoint (saved %s, now %s); the order is the same",
                name, old.tracks_fingerprint, new.tracks_fingerprint,
            )  # fmt: skip
    names = {one.dataset for one in saved.members.values()} & {one.dataset for one in current.members.values()}
    for column in sorted(saved.columns.keys() & current.columns.keys()):
        was, now = saved.columns[column], current.columns[column]
        for name in sorted(names):
            if was.get(name) != now.get(name):
                logger.warning(
                    "outputs.columns.%s: dataset %s has other values than at the checkpoint (saved %s, now %s); the "
                    "order is the same", column, name, was.get(name, "none"), now.get(name, "none"),
                )  # fmt: skip
    if saved.quarantine != current.quarantine:
        logger.warning("exclude: which tokens are never read has changed since the checkpoint; it holds from here on")
