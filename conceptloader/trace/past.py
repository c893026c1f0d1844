"""Opening a run: what each launch has trained by the run log, or what a configuration says.

The log has the order of each launch, with fingerprints of its data and masks, and its configuration. A configuration
file may have been edited since: with a log it says where the data are now, and nothing about the past.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from conceptloader.config import Blend, Config, load_config, open_blend
from conceptloader.config.blend import open_datasets
from conceptloader.config.exclude import Excluded, read_excluded
from conceptloader.config.schema import LoaderConfig
from conceptloader.errors import ConceptloaderError, ConfigError, ReadError, ResumeError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.runlog import FILE_NAME, Launch, RunLog, RunStart
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.segments import in_force
from conceptloader.storage.urls import is_url
from conceptloader.trace.run import EVERY, Era, Run

logger = logging.getLogger(__name__)


def open_log(log: str | os.PathLike[str]) -> RunLog:
    """The run log in a directory, or of its file. Raises ConfigError for a file of another name, which is not read."""
    folder, name = os.path.split(os.fspath(log))
    if name == FILE_NAME:
        return RunLog(folder or ".")
    if os.path.isfile(log):
        found, fix = f"the file {log}", f"pass --run-log DIR, or rename the file to {FILE_NAME}"
        raise ConfigError("run log", found, f"a directory with a file {FILE_NAME}, or this file", fix)
    if not os.path.isdir(log):
        fix = "pass --run-log the folder of the run's checkpoints"
        raise ConfigError("run log", f"no directory {log}", f"a directory with a file {FILE_NAME}", fix)
    return RunLog(log)


def open_run(config: str | os.PathLike[str] | None = None, log: str | os.PathLike[str] | None = None) -> Run:
    """A run from its run log, or as a configuration plans it.

    Args:
        config: The configuration file. With a run log it says only where the data are now, and may be omitted.
        log: Directory or file of the run log: each launch answers for what it trained, and the last one for what
            follows.

    Returns:
        The run.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: If a dataset has been rebuilt since the last launch, or files with what it masked were edited; what
            an earlier launch read is looked for when it is asked for.
    """
    if log is None:
        if config is None:
            raise ConfigError(
                "run",
                "no configuration",
                "CONFIG, the YAML file of the run, or its run log",
                "pass CONFIG, or --run-log DIR",
            )
        return Run(blend=open_blend(load_config(config)))
    runs = open_log(log)
    if not runs.starts:
        raise ConfigError(runs.path, "no start of a run", "the run log of a training", "pass the folder of the run log")
    last = runs.history.launches[-1].start
    given = None if config is None else load_config(config, defaults=defaults_of(runs.spec(last), last.seq_len))
    past = _Past(runs, given)
    own = past.config(last)
    if given is not None and own is not None and _apart_from_places(given) != _apart_from_places(own):
        logger.warning(
            "%s: the configuration differs from that of the launch at step %d: answers are those of the launch, of the "
            "configuration without a run log", runs.path, last.step,
        )  # fmt: skip
    return replace(past.run(), log=runs)


def defaults_of(spec: OrderSpec, seq_len: int | None = None) -> dict[str, Any]:
    """What a framework's command line may have said in place of the configuration, by the order that was saved.

    seq_len: if it is known; by default that of the phases that are not over.
    """
    names = [one for one in spec.segments if one.weights][-1].weights if spec.segments else spec.members
    lengths = {spec.members[name].seq_len for name in names} if seq_len is None else {seq_len}
    said = {"seed": spec.seed, "split_documents": spec.extra.get("split_documents")}
    said["seq_len"] = lengths.pop() if len(lengths) == 1 else None
    return {key: value for key, value in said.items() if value is not None}


class _Past:
    """What the launches of a run log have trained. given: the configuration as it is now, if one was given."""

    def __init__(self, runs: RunLog, given: Config | None) -> None:
        self.runs, self.given = runs, given
        self._configs: dict[int, Config] = {}
        self._datasets: dict[Any, dict[str, Dataset]] = {}
        self._blends: dict[Any, Blend] = {}

    def run(self) -> Run:
        """The run, with an era for each order or set of masks that samples were trained with."""
        history, eras = self.runs.history, list[Era]()
        for spec, launches in self._groups(history.launches):
            first = min(one.start.consumed for one in launches)
            stop = max(_end(one, history.launches) for one in launches)
            opened = cache(partial(self._open, spec, launches, first, stop))
            eras.append(Era(first, stop, launches[0].start.step, opened))
        run = eras[-1].open()
        return replace(run, history=history, parts=tuple(eras) if len(eras) > 1 else ())

    def _groups(self, launches: Sequence[Launch]) -> list[tuple[OrderSpec, list[Launch]]]:
        """Launches by what decided their samples: a later launch answers for an earlier one where it says the same."""
        groups: list[tuple[OrderSpec, list[Launch]]] = []
        for launch in reversed(launches):
            end = _end(launch, launches)
            spec = self.runs.spec_at(launch.start, None if end == EVERY else end)
            later, after = groups[-1] if groups else (None, [])
            alike = later is not None and self._alike(launch, after[-1])
            if later is not None and alike and self._deciding(spec, end) == self._deciding(later, end):
                after.insert(0, launch)
            else:
                groups.append((spec, [launch]))
        return groups[::-1]

    def _alike(self, *launches: Launch) -> bool:
        """Whether their configurations make the same of a sample."""
        configs = [self.config(launch.start) for launch in launches]
        shown = [one and (one.tracks, {k: it.tracks for k, it in one.datasets.items()}) for one in configs]
        return len({one.start.seq_len for one in launches}) == 1 and all(one == shown[0] for one in shown)

    def _deciding(self, spec: OrderSpec, stop: int) -> Any:
        """What decides the batches of samples before `stop`."""
        segments = [(one.at, one.skip, dict(one.weights)) for one in in_force(spec.segments) if one.at < stop]
        names = {name for *_, weights in segments for name in weights} or set(spec.members)
        members = {name: spec.members.get(name) for name in names}
        masks = {
            one.dataset: (
                spec.quarantine.get(one.dataset),
                [pair for pair in spec.exclude.get(one.dataset, ()) if pair[0] < stop],
            )
            for one in members.values()
            if one is not None
        }
        return spec.order, spec.seed, spec.block, spec.extra, segments, members, masks

    def config(self, start: RunStart) -> Config | None:
        """That of a launch, if the log has one."""
        data = self.runs.config(start)
        if data is not None and id(data) not in self._configs:
            self._configs[id(data)] = load_config(data)
        return None if data is None else self._configs[id(data)]

    def _open(self, spec: OrderSpec, launches: Sequence[Launch], first: int, stop: int) -> Run:
        blend = self._blend(spec, launches[-1].start)
        return Run(blend=blend, history=self.runs.history.part(launches), first=first, stop=stop)

    def _blend(self, spec: OrderSpec, start: RunStart) -> Blend:
        own = self.config(start)
        key = spec.hash, id(own)
        if key not in self._blends:
            if own is None:
                raise ConfigError(
                    self.runs.path,
                    f"no configuration of the launch at step {start.step}, order {spec.order}",
                    "a launch with an order of conceptloader, logged with its configuration",
                    "ask about steps of other launches",
                )
            try:
                config, datasets = self._data(own, spec)
                excluded = self._excluded(spec, [own, self.given] if self.given else [own], datasets)
            except ConceptloaderError as error:
                raise error.within(f"{self.runs.path}, launch of step {start.step} ({start.time})") from error
            for member in spec.members.values():
                dataset = datasets.get(member.dataset)
                if dataset is not None and dataset.tracks_fingerprint != member.tracks_fingerprint:
                    logger.warning(
                        "datasets.%s: its tracks have changed since the launch of step %d; spans are shown as they are "
                        "now", member.dataset, start.step,
                    )  # fmt: skip
            self._blends[key] = Blend(config=config, datasets=datasets, excluded=excluded, spec=spec)
        return self._blends[key]

    def _data(self, config: Config, spec: OrderSpec) -> tuple[Config, dict[str, Dataset]]:
        """Its datasets, where the given configuration has them or else where they were, and a Config that says so."""
        was, now = config.datasets, {} if self.given is None else self.given.datasets
        roots = {*(config.allowed_roots or ()), *((self.given and self.given.allowed_roots) or ())}
        moved = {name: replace(entry, path=now[name].path) for name, entry in was.items() if name in now}
        loader = config.loader if self.given is None else self.given.loader
        config = replace(config, datasets={**was, **moved}, allowed_roots=tuple(sorted(roots)) or None, loader=loader)
        for name, entry in config.datasets.items() if self.given is None else ():
            if not is_url(entry.path) and not os.path.isdir(entry.path):
                fix = "give CONFIG, a configuration with its present path"
                raise ConfigError(f"datasets.{name}", f"no directory {entry.path}", "where it was", fix)
        datasets = self._opened(config)
        elsewhere = [name for name, entry in moved.items() if entry.path != was[name].path]
        back = {name for name in _changed(spec, datasets) if name in elsewhere}
        if back:
            logger.warning("datasets.%s.stream_fingerprint: the configuration has other data by now", min(back))
            config = replace(config, datasets={**config.datasets, **{name: was[name] for name in back}})
            datasets = self._opened(config)
        for name, expected in _changed(spec, datasets).items():
            raise ResumeError(
                f"datasets.{name}.stream_fingerprint",
                f"{datasets[name].stream_fingerprint} in {datasets[name].path}",
                f"{expected}, which was trained on",
                "restore the dataset, or give a configuration with its present path",
            )
        return config, datasets

    def _opened(self, config: Config) -> dict[str, Dataset]:
        places = [(name, entry.path) for name, entry in config.datasets.items()]
        key = tuple(places), config.allowed_roots
        if key not in self._datasets:
            for name, path in places:
                if "://" in path and "***" in path:
                    fix = "give CONFIG, and write a password there as ${NAME}, a variable that the log keeps"
                    raise ConfigError(f"datasets.{name}", path, "a URL with its password, which no run log has", fix)
            self._datasets[key] = open_datasets(config)
        return self._datasets[key]

    def _excluded(
        self, spec: OrderSpec, configs: Sequence[Config], datasets: Mapping[str, Dataset]
    ) -> dict[str, Excluded]:
        """What was excluded, by the first configuration of which that has the fingerprints of the spec."""
        problems: list[str] = []
        for config in configs:
            try:
                return _excluded_of(config, spec, datasets)
            except (ConfigError, ReadError) as error:
                problems.append(str(error))
        files = [one.file or one.token_file for one in configs[0].exclude]
        listed = ", ".join(filter(None, files)) or "exclude in the configuration"
        found = f"what it excluded cannot be reproduced ({'; '.join(dict.fromkeys(problems))})"
        raise ResumeError("", found, fix=f"restore {listed}")


def _apart_from_places(config: Config) -> Config:
    datasets = {name: replace(entry, path="-") for name, entry in config.datasets.items()}
    return replace(config, datasets=datasets, allowed_roots=None, loader=LoaderConfig())


def _end(launch: Launch, launches: Sequence[Launch]) -> int:
    """The sample after its last one, with those that a later launch passed over."""
    if launch.stop_step is None:
        return EVERY
    after = launches[launches.index(launch) + 1].start.consumed
    return max(launch.plan.schedule.consumed_at(launch.stop_step), after)


def _changed(spec: OrderSpec, datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Datasets whose tokens are not those of the order: name -> fingerprint that they should have."""
    known: dict[str, list[str]] = {}
    for member in spec.members.values():
        known.setdefault(member.dataset, []).append(member.stream_fingerprint)
    return {
        name: known[name][-1]
        for name, dataset in datasets.items()
        if name in known and dataset.stream_fingerprint not in known[name]
    }


def _excluded_of(config: Config, spec: OrderSpec, datasets: Mapping[str, Dataset]) -> dict[str, Excluded]:
    """What a configuration excludes, as far as a spec has it. Raises ConfigError if it is another there."""
    later = any(name in datasets for name in spec.exclude)
    entries = [
        one
        for one in config.exclude
        if (one.dataset is None or one.dataset in datasets)
        and (one.dataset in spec.quarantine if one.at is None else later)
    ]
    read, _ = read_excluded(entries, datasets, past=True)
    found = dict[str, Excluded]()
    for name in datasets:
        expected = spec.quarantine.get(name), tuple(spec.exclude.get(name, ()))
        # An entry for other samples has come since.
        found[name] = read.get(name, Excluded()).since([at for at, _ in expected[1]])
        if found[name].prints != expected:
            raise ConfigError(f"exclude of {name}", f"the fingerprints {found[name].prints}", f"{expected}")
    return found
