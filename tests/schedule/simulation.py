"""A training run without data or processes: config changes, restarts, kills, any number of ranks.

Everything that decides a sample is the code that loaders run: the spec of a configuration and its resumption, the order
that it builds, and a rank's micro batches (Plan.rest).
"""

import json
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import Partition, Place, Plan
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.runlog import History, RunStart
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.segments import Segment, origins

NAMES = ("books", "code", "forum", "math", "news", "web")
Pick = tuple[str, int, int]
"""(member, epoch, window)."""


@dataclass
class Settings:
    """What a person edits between two starts: the configuration."""

    tokens: dict[str, int]
    seq_len: int
    phases: list[Segment]
    skips: list[Segment]
    seed: int
    block: int

    def spec(self) -> OrderSpec:
        members = {
            name: Member(
                dataset=name,
                seq_len=self.seq_len,
                windows=max(1, (tokens - 1) // self.seq_len),
                stream_fingerprint=name,
                token_range=(0, tokens),
            )
            for name, tokens in self.tokens.items()
        }
        return OrderSpec(seed=self.seed, block=self.block, members=members, segments=(*self.phases, *self.skips))


@dataclass
class Trained:
    """The run as it ended: sample t is trained[t], at places[t]. Rolled back steps are cut off."""

    picks: list[Pick] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)  # samples consumed after each step
    specs: list[str] = field(default_factory=list)  # the order spec in the checkpoint after each step


@dataclass
class Run:
    """starts: in the order in which they happened, as the run log has them."""

    settings: Settings
    trained: Trained = field(default_factory=Trained)
    spec: OrderSpec | None = None
    starts: list[RunStart] = field(default_factory=list)

    @property
    def consumed(self) -> int:
        return len(self.trained.picks)


def simulate(seed: int) -> Run:
    """A run of random starts, each ended by a kill, and resumed from some earlier checkpoint."""
    rng = np.random.default_rng(seed)
    run = Run(_settings(rng))
    for start in range(int(rng.integers(2, 6))):
        if start:
            _roll_back(run, rng)
            _edit(run, rng)
        _launch(run, rng)
    return run


def _settings(rng: np.random.Generator) -> Settings:
    count = int(rng.integers(1, len(NAMES) + 1))
    tokens = {name: _tokens(rng) for name in rng.permutation(NAMES)[:count].tolist()}
    settings = Settings(
        tokens=tokens,
        seq_len=int(rng.integers(1, 20)),
        phases=[Segment(at=0, weights=_weights(tokens, rng))],
        skips=[],
        seed=int(rng.integers(1 << 40)),
        block=int(rng.choice([1, 2, 7, 64, 300])),
    )
    for _ in range(int(rng.integers(0, 3))):
        _add_phase(settings, int(rng.integers(1, 400)), rng)
    return settings


def _tokens(rng: np.random.Generator) -> int:
    """Often so few that an epoch is one window, sometimes more than a run reads."""
    return int(rng.choice([2, 30, 300, 10_000, 1 << 40])) + int(rng.integers(20))


def _weights(tokens: dict[str, int], rng: np.random.Generator) -> dict[str, float]:
    names = rng.permutation(sorted(tokens))[: int(rng.integers(1, len(tokens) + 1))].tolist()
    return {name: int(rng.integers(1, 1000)) if rng.random() < 0.5 else float(rng.random() + 1e-6) for name in names}


def _add_phase(settings: Settings, at: int, rng: np.random.Generator) -> None:
    if at > settings.phases[-1].at:
        settings.phases.append(Segment(at=at, weights=_weights(settings.tokens, rng)))


def _roll_back(run: Run, rng: np.random.Generator) -> None:
    """A kill loses the steps since the checkpoint; or people go back to an older one, before other starts."""
    trained = run.trained
    done, first = len(trained.step_ends), 0 if rng.random() < 0.2 else run.starts[-1].step
    step = int(rng.integers(first, done + 1)) if rng.random() < 0.7 else done
    consumed = trained.step_ends[step - 1] if step else 0
    del trained.step_ends[step:], trained.specs[step:], trained.picks[consumed:], trained.places[consumed:]
    run.spec = OrderSpec.from_dict(json.loads(trained.specs[-1])) if step else None


def _edit(run: Run, rng: np.random.Generator) -> None:
    """Change what lies ahead."""
    settings = run.settings
    first, *later = settings.phases
    settings.phases = [first, *(phase for phase in later if phase.at < run.consumed or rng.random() < 0.5)]
    settings.skips = [skip for skip in settings.skips if skip.at < run.consumed or rng.random() < 0.5]
    if rng.random() < 0.3 and len(settings.tokens) < len(NAMES):  # a dataset joins
        name = next(name for name in NAMES if name not in settings.tokens)
        settings.tokens = {**settings.tokens, name: _tokens(rng)}
    if rng.random() < 0.2 and run.consumed:
        settings.seq_len = int(rng.integers(1, 20))
    if rng.random() < 0.6:
        _add_phase(settings, run.consumed + int(rng.integers(0, 200)), rng)
    if rng.random() < 0.3:
        skip = Segment(at=run.consumed + int(rng.integers(0, 100)), skip=int(rng.integers(1, 150)))
        settings.skips = [*settings.skips, skip]


def _launch(run: Run, rng: np.random.Generator) -> None:
    """Start on a random machine, train a random number of steps, write the checkpoint."""
    current = run.settings.spec()
    if run.spec is not None:
        current = resume(run.spec, current, run.consumed, on_seq_len_change="restart")
    order = current.build()
    names = list(current.members)
    partition = Partition(
        micro_batch_size=int(rng.integers(1, 5)),
        dp_size=int(rng.choice([1, 2, 3, 4, 5, 8, 16])),
        scheme="strided" if rng.random() < 0.5 else "contiguous",
    )
    schedule = _schedule(partition.group, rng)
    step = len(run.trained.step_ends)
    run.starts.append(
        RunStart(
            step=step,
            consumed=run.consumed,
            batch=schedule.rule,
            micro_batch_size=partition.micro_batch_size,
            dp_size=partition.dp_size,
            scheme=partition.scheme,
            seq_len=run.settings.seq_len,
            spec=current.hash,
        )
    )
    plan = Plan(partition=partition, schedule=schedule.at(0, run.consumed))  # as Loader makes it
    tasks = [plan.rest(dp_rank, run.consumed) for dp_rank in range(partition.dp_size)]
    for number in range(int(rng.integers(1, 12))):
        first, last = plan.range_of(number)
        run.trained.specs.append(json.dumps(current.to_dict()))
        _step(
            run, step + number, first, last, [list(islice(t, (last - first) // partition.group)) for t in tasks], order
        )
    run.trained.picks = [
        pick if isinstance(pick[0], str) else (names[pick[0]], *pick[1:]) for pick in run.trained.picks
    ]
    run.spec = current


def _schedule(group: int, rng: np.random.Generator) -> BatchSchedule:
    if rng.random() < 0.5:
        return BatchSchedule.constant(group * int(rng.integers(1, 4)))
    low, increments = int(rng.integers(1, 3)), int(rng.integers(0, 4))
    return BatchSchedule.ramp_up(group * low, group, int(rng.integers(1, 300)), group * (low + increments))


def _step(run: Run, step: int, first: int, last: int, tasks: list[list[Any]], order: Any) -> None:
    """One step on all ranks: who trains which sample, and what it is. Raises AssertionError unless each comes once."""
    places: dict[int, Place] = {}
    picks: dict[int, Any] = {}
    for dp_rank, micro_batches in enumerate(tasks):
        samples = np.concatenate([samples for samples, _ in micro_batches])
        columns = [column.tolist() for column in order.sample_many(samples)]
        place = [
            Place(step, number, dp_rank, slot)
            for number, (row, _) in enumerate(micro_batches)
            for slot in range(len(row))
        ]
        for t, where, *pick in zip(samples.tolist(), place, *columns, strict=True):
            assert t not in places, f"sample {t} is trained at {places[t]} and at {where}"
            places[t], picks[t] = where, tuple(pick)
        assert micro_batches[-1][1] == last, "a rank's own count of consumed samples"
    assert sorted(places) == list(range(first, last))
    assert first == run.consumed
    run.trained.places += [places[t] for t in range(first, last)]
    run.trained.picks += [picks[t] for t in range(first, last)]
    run.trained.step_ends.append(last)


def check(run: Run) -> None:
    """The promises, on the run as it ended."""
    spec = run.spec
    assert spec is not None
    assert run.consumed
    names = list(spec.members)
    order = spec.build()
    planned = zip(*(column.tolist() for column in order.sample_many(np.arange(run.consumed))), strict=True)
    assert run.trained.picks == [(names[k], *rest) for k, *rest in planned], "the past is not what the last spec says"

    listed = zip(origins(spec.segments), spec.segments, strict=True)
    unskipped = replace(spec, segments=tuple(replace(one, at=start) for start, one in listed if one.weights))
    end = run.consumed + sum(one.skip for one in spec.segments if one.at < run.consumed)
    _check_epochs(unskipped.build(), spec, end, names)
    _check_proportions(unskipped.build(), unskipped, end)
    history = History(run.starts)
    for t in np.unique(np.linspace(0, run.consumed - 1, 7).astype(int)).tolist():
        assert history.places(t) == [run.trained.places[t]]
        assert history.range_of(run.trained.places[t].step)[1] in run.trained.step_ends


def _check_epochs(order: Mixture, spec: OrderSpec, decided: int, names: list[str]) -> None:
    """Every window once per epoch, epoch after epoch; nothing is used twice because of a change of plans."""
    datasets, epochs, windows = order.sample_many(np.arange(decided))
    for k, name in enumerate(names):
        size, here = spec.members[name].windows, datasets == k
        used = epochs[here].astype(np.int64) * size + windows[here].astype(np.int64)
        draws = int(here.sum())
        assert epochs[here].tolist() == [draw // size for draw in range(draws)]
        assert len(np.unique(used)) == draws, f"{name}: a window twice in one epoch"
        full = draws // size * size
        assert sorted(used[:full].tolist()) == list(range(full)), f"{name}: a window left out of an epoch"
        assert not draws or int(windows[here].max()) < size


def _check_proportions(order: Mixture, spec: OrderSpec, decided: int) -> None:
    """At every block border each dataset is as near to its weight as the tree promises."""
    bound = order.deviation + 1e-6
    assert bound < 2
    names = list(spec.members)
    stops = [*(phase.at for phase in spec.segments[1:]), decided]
    for phase, stop in zip(spec.segments, stops, strict=True):
        if phase.at >= decided:
            break
        base, total = order.counts(phase.at), sum(phase.weights.values())
        for border in range(phase.at, min(stop, decided) + 1, spec.block):
            counts = order.counts(border) if border <= stop else base
            for k, name in enumerate(names):
                share = phase.weights.get(name, 0) / total * (border - phase.at)
                assert abs(counts[k] - base[k] - share) <= bound, (
                    f"{name} at {border}: {counts[k] - base[k]} of {share}"
                )
