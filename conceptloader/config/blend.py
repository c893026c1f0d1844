"""Config -> open datasets, the order of their samples and its spec: what every loader and adapter starts from."""

import copy
import dataclasses
import logging
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.base.lazy import uncollected
from conceptloader.base.shown import Shown
from conceptloader.base.strict import unknown
from conceptloader.base.version import __version__
from conceptloader.config.exclude import Excluded, read_excluded
from conceptloader.config.load import load_config
from conceptloader.config.mask import NOTHING, Mask
from conceptloader.config.packing import Packing, Packs
from conceptloader.config.phases import Phase, planned, with_skips
from conceptloader.config.replayed import replayed_segments
from conceptloader.config.schema import Config, DatasetConfig, MegatronOrder
from conceptloader.config.sizes import member_of
from conceptloader.config.vocabulary import check_concepts
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.dataset import Dataset, open_found
from conceptloader.format.read.files import Found
from conceptloader.format.spec.manifest import tables_of
from conceptloader.format.spec.paths import with_default
from conceptloader.order.mixture import Mixture
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.spec import KEPT, Member, OrderSpec
from conceptloader.order.segments import Segment
from conceptloader.order.weights import exact_weights, tempered

logger = logging.getLogger(__name__)

MOST_UNREAD = 0.05
"""Share of a dataset's tokens that may be in no sample without a warning."""

# What may differ between ranks, besides where files lie: how they are read.
_LOCAL = ("loader", "allowed_roots", "exclude", "continue_from")

_TOGETHER = 512  # datasets whose manifests are read before they are checked

MAX_WEIGHTS = 1 << 18
"""Of all phases that a replay or a ramp makes: each of them is in every state, which may have 16 MiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """The windows, documents or packs of a dataset that one member of the order draws.

    name: of the dataset. dataset_id: position of that name in config.names. member: see progress/spec.py. tracks:
    those to read. start: first token of window or pack 0, or number of the first document. packs: None where samples
    are none. mask: tokens whose samples read nothing, from some sample on. own, within: see Excluded. loss_weight: a
    factor of the weights of all losses.
    """

    name: str
    dataset_id: int
    dataset: Dataset
    member: Member
    tracks: tuple[str, ...]
    start: int
    packs: Packs | None = None
    mask: Mask = NOTHING
    own: Mask = NOTHING
    within: Mask = NOTHING
    loss_weight: float = 1.0

    @property
    def levels(self) -> tuple[str, ...]:
        """The tracks of the manifest that hold the spans of `tracks`."""
        return tuple(level for track in self.tracks for level in self.dataset.levels[track])

    @property
    def count(self) -> int:
        """Windows, documents or packs."""
        return self.member.windows

    @property
    def by_document(self) -> bool:
        """Whether a sample is a document, not a window or a pack."""
        return self.member.seq_len is None

    @property
    def kind(self) -> str:
        """What a sample is called."""
        return "document" if self.by_document else "pack" if self.packs is not None else "window"

    @property
    def drops(self) -> bool:
        """Whether tokens after the room of a sample are in none."""
        return self.by_document or (self.packs is not None and self.packs.packing.overflow == "crop")

    def closed(self, numbers: Any) -> Any:
        """Whether a document, or each of many, is in a shard that is never read, its table too."""
        shards = np.searchsorted(self.dataset.manifest.shards.first_documents, self.start + numbers, side="right") - 1
        return self.mask.closed(self.dataset)[shards]


def present(views: Sequence[View | None], member: int) -> View:
    """views[member]. Raises ConfigError if that member of the order has left the configuration."""
    view = views[member]
    if view is None:
        raise ConfigError(
            "datasets",
            f"a request for samples from before member {member} of the order was removed from the configuration",
            "its dataset",
            f"name the dataset of member {member} under `datasets` again",
        )
    return view


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blend(Shown):
    """An open configuration.

    Attributes:
        config: The configuration, checked.
        datasets: Open datasets by name.
        excluded: Dataset -> which of its tokens are not read, where there are any.
        spec: What determines the order; it is saved with a checkpoint.
        unknown_ids: Entry of `exclude` -> how many of its ids no dataset has.
        order: Sample index -> (k, epoch, window), where k is a position in `views`; it follows from the rest.
        views: By member of the order; None stands for a member of the past whose dataset has left the configuration.
    """

    config: Config
    datasets: Mapping[str, Dataset]
    excluded: Mapping[str, Excluded]
    spec: OrderSpec
    unknown_ids: Mapping[int, int] = dataclasses.field(default_factory=dict)
    order: Mixture = dataclasses.field(init=False)
    views: tuple[View | None, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", self._order())
        object.__setattr__(self, "views", tuple(map(self._view, self.spec.members.values())))

    def _order(self) -> Mixture:
        return self.spec.build({name: entry.max_epochs for name, entry in self.config.datasets.items()})

    def _view(self, member: Member) -> View | None:
        name, ds = member.dataset, self.datasets.get(member.dataset)
        if ds is None or ds.stream_fingerprint != member.stream_fingerprint:
            return None
        tracks, excluded = tuple(_tracks(self.config, name, ds)), self.excluded.get(name, Excluded())
        weight = self.config.datasets[name].loss_weight
        mask = excluded.mask
        for track in tracks:
            ds.codec(track)  # now: one that may not be used is an error before anything is read
        start, packs = member.token_range[0], None
        if member.seq_len is None:
            start = ds.documents_before(start)
        elif member.packing is not None:
            packs = Packs(ds, Packing(seq_len=member.seq_len, **vars(member.packing)), member.token_range, mask)
        return View(
            name=name,
            dataset_id=bisect_left(self.config.names, name),
            dataset=ds,
            member=member,
            tracks=tracks,
            start=start,
            packs=packs,
            mask=mask,
            own=excluded.own,
            within=excluded.within,
            loss_weight=1.0 if weight is None else weight,
        )

    def views_of(self, seq_len: int, packed: bool) -> list[View | None]:
        """The views whose samples can be in a batch: of so many tokens or documents, and packs or not. None for others.

        Members of an earlier sequence length or packing are part of the order.
        """
        return [
            view if view and view.member.seq_len in (None, seq_len) and bool(view.member.packing) == packed else None
            for view in self.views
        ]

    def resume(
        self,
        saved: OrderSpec | Mapping[str, Any],
        consumed: int,
        *,
        allow_changed: Collection[str] = (),
        new_stage: bool = False,
    ) -> "Blend":
        """This configuration as the continuation of a run that was saved at `consumed` samples.

        Raises ResumeError if what decided past samples has changed.
        """
        if not isinstance(saved, OrderSpec):
            saved = OrderSpec.from_dict(saved)
        spec = resume(
            saved,
            self.spec,
            consumed,
            allow_changed=allow_changed,
            new_stage=new_stage,
        )
        return self._in_order(spec)

    def _in_order(self, spec: OrderSpec) -> "Blend":
        """By another spec; with these views where the members stay."""
        if spec.members != self.spec.members:
            return dataclasses.replace(self, spec=spec)
        changed = copy.copy(self)
        object.__setattr__(changed, "spec", spec)
        object.__setattr__(changed, "order", changed._order())
        return changed

    def with_live(self, segment: Segment, consumed: int) -> "Blend":
        """With weights set live by a run that asks for no sample before `consumed`; see OrderSpec.with_live."""
        spec = self.spec.with_live(segment, self.order)
        known = min(consumed, *(one.at + 1 for one in spec.live[-KEPT:]))
        return self._in_order(spec.cut(known))

    def facts(self, **more: Any) -> dict[str, Any]:
        """What has to be equal on all ranks that read it; see `facts_of`."""
        return facts_of(self.config, self.spec, **more)

    def cut(self, view: View, most: int = 64) -> tuple[int, float, float]:
        """(documents that `view` reads, share of them that are longer than a sample, share of tokens in no sample).

        most: Documents of which the shares are, where it reads more: some that follow each other, in eight places.
        """
        if view.by_document:
            first, count = view.start, view.count
        else:
            first, end = map(view.dataset.documents_before, view.member.token_range)
            count = end - first
        places = np.random.default_rng(0).integers(0, max(1, count - most // 8), (8, 1)) + np.arange(most // 8)
        chosen = np.arange(count) if count <= most else np.unique(places)
        lengths = np.array([np.diff(view.dataset.document_range(first + k))[0] for k in chosen.tolist()])
        room = (self.config.seq_len or 0) + view.by_document
        longer = np.maximum(lengths - room, 0)
        share = view.drops * longer.sum() / max(1, lengths.sum())
        return count, (longer > 0).sum() / max(1, count and len(lengths)), share

    def look_ahead(self, consumed: int) -> None:
        """Warn of tokens in no sample, and look at the files of datasets that take part at sample `consumed` or later.

        A missing or shorter file is found now, not hours later; but of datasets of which something is excluded, since
        that may be why. For one rank of a run.

        Raises FormatError for a file of another size than its manifest says, ReadError for one that is not there.
        """
        for view in self.views:
            if view is not None and view.drops and (lost := self.cut(view)[2]) > MOST_UNREAD:
                logger.warning("%s: %s", view.name, unread(lost))
        current = sum(one.at <= consumed for one in self.order.segments) - 1
        read = {name for one in self.order.segments[current:] for name in one.weights}
        some = {view.name for view in self.views if view is not None and len(view.mask.at) + len(view.own.at)}
        for name in sorted({self.spec.members[member].dataset for member in read} & set(self.datasets) - some):
            self.datasets[name].files.look()


def unread(share: float) -> str:
    """What to say about a dataset of whose tokens this share is after the room of a sample."""
    fix = "to read them, set packing: {overflow: split}, or a larger seq_len"
    return f"{share:.1%} of the tokens are in no sample, at the ends of documents that are longer; {fix}"


def facts_of(config: Config, spec: OrderSpec, **more: Any) -> dict[str, Any]:
    """What has to be equal on all ranks that read an order: the release, the order, and all that shapes a batch.

    Paths may differ, as copies on the nodes' own disks do: the order has fingerprints of what is there, also of what is
    excluded, and of columns. more: JSON values of the trainer, such as the global batch size.
    """
    shaping = config.with_paths(lambda path, key: "-").to_dict()
    for key in _LOCAL:
        shaping.pop(key, None)
    more["balance"] = config.loader.balance
    return {"conceptloader": __version__, "order": spec.to_dict(), "configuration": shaping, **more}


ConfigLike = Config | Blend | Mapping[str, Any] | str | os.PathLike[str]
"""A YAML file's path, its content, a Config, or what open_blend made of one."""


@uncollected()
def open_blend(
    config: ConfigLike,
    datasets: Mapping[str, Dataset] | None = None,
    *,
    some_tracks: bool = False,
) -> Blend:
    """Open the datasets of a configuration, unless they are given, and lay out the order of samples.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend, which stays as it is.
        datasets: Open datasets by name; by default they are opened.
        some_tracks: Tracks of `tracks` may be missing everywhere: those of a training, in its evaluation data.

    Returns:
        The datasets with their order.

    Raises:
        ConfigError: The configuration does not fit its datasets.
        FormatError: A dataset is corrupt.
        ReadError: A file cannot be read.
    """
    if isinstance(config, Blend):
        if datasets is not None:
            raise ConfigError(
                "open_blend",
                "datasets with an open Blend, which has its own",
                "datasets with a configuration only",
                "omit datasets, or pass the configuration of the Blend",
            )
        return config
    config = config if isinstance(config, Config) else load_config(config)
    with config.named():
        return _open(config, datasets, some_tracks)


def _open(config: Config, datasets: Mapping[str, Dataset] | None, some_tracks: bool) -> Blend:
    if isinstance(config.order, MegatronOrder):
        raise ConfigError(
            "order",
            "megatron, which takes over a run of Megatron-LM",
            "another order",
            "start the run with the adapter for Megatron-LM, or omit `order`",
        )
    opened = open_datasets(config) if datasets is None else _given(config, datasets)
    _check_alike(opened, config, some_tracks)
    excluded, unknown_ids = read_excluded(config.exclude, opened)
    prints = {name: one.prints for name, one in excluded.items()}
    members = {name: member_of(name, ds, config) for name, ds in opened.items()}
    spec = OrderSpec(
        seed=config.seed,
        block=config.block,
        members=members,
        segments=_segments(config, members) if config.order == "shuffled" else (),
        quarantine={name: always for name, (always, _) in prints.items() if always},
        exclude={name: later for name, (_, later) in prints.items() if later},
        order=config.order,
        extra={} if config.split_documents is None else {"split_documents": [*map(float, config.split_documents)]},
        columns=columns_of(config, opened),
    )
    _check_size(spec, config)
    return Blend(config=config, datasets=opened, excluded=excluded, spec=spec, unknown_ids=unknown_ids)


def _given(config: Config, datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    if set(datasets) != set(config.datasets):
        raise ConfigError(
            "datasets",
            f"{sorted(datasets)} open",
            f"those of the configuration, {config.names}",
            "pass the datasets of this configuration",
        )
    return {name: datasets[name] for name in config.names}


def open_datasets(config: Config) -> dict[str, Dataset]:
    """Return the datasets of a configuration, by name.

    Two parts of one dataset share it, and views of one its manifest, document table and descriptors.
    """
    opened: dict[str, Dataset] = {}
    names = {entry.path: name for name, entry in reversed(config.datasets.items())}
    paths, at = [*names][::-1], ""
    try:
        for some in (paths[k : k + _TOGETHER] for k in range(0, len(paths), _TOGETHER)):
            found = []
            for at in some:
                found.append(Found(at, with_default(at, config.allowed_roots), config.loader.verify_files))
            for at, one, table in zip(some, found, tables_of([one.head for one in found]), strict=True):
                opened[at] = open_found(one, table)
    except (ConfigError, FormatError) as error:
        raise error.within(f"datasets.{names[at]}") from error
    same: dict[tuple[str, ...], Dataset] = {}
    for dataset in opened.values():
        dataset.share_files(same.setdefault((dataset.source, *dataset.source_fingerprints), dataset))
    return {name: opened[config.datasets[name].path] for name in config.names}


def _check_alike(datasets: Mapping[str, Dataset], config: Config, some_tracks: bool) -> None:
    """Refuse what cannot be blended, and tracks that nobody has."""
    first = next(iter(datasets))
    for name, ds in datasets.items():
        if config.packing is None and (ds.mode == "document") != (datasets[first].mode == "document"):
            raise ConfigError(
                f"datasets.{name}",
                f"mode {ds.mode}, but datasets.{first} has mode {datasets[first].mode}",
                "the same mode in all datasets",
                "set packing, by which documents and windows can be blended",
            )
        for track in config.datasets[name].tracks or ():
            if track not in ds.tracks:
                raise unknown(f"datasets.{name}.tracks", track, ds.tracks, f"track of {ds.path}:")
    known = {track for ds in datasets.values() for track in ds.tracks}
    for track in config.tracks:
        if track not in known and not some_tracks:
            raise unknown(f"tracks.{track}", track, known, "track")
        if not config.allow_mixed_vocabularies:
            check_concepts({name: ds for name, ds in datasets.items() if track in _tracks(config, name, ds)}, track)
    tokenizers = {name: ds.tokenizer for name, ds in datasets.items() if ds.tokenizer is not None}
    if len(set(tokenizers.values())) > 1 and not config.allow_mixed_tokenizers:
        (usual, count), *_ = Counter(tokenizers.values()).most_common(1)
        like = next(name for name, t in tokenizers.items() if t == usual)
        shown = {t: f"{t.name} with {t.vocab_size} tokens and eos {t.eos_id}" for t in tokenizers.values()}
        odd = [f"{name}: {shown[t]}" for name, t in tokenizers.items() if t != usual]
        more = f" and {len(odd) - 3} more," * (len(odd) > 3)
        raise ConfigError(
            "datasets",
            f"different tokenizers ({', '.join(odd[:3])},{more} against {shown[usual]} in {count} datasets, such as "
            f"{like})",
            "the same tokenizer in all datasets",
            "if their ids mean the same, set allow_mixed_tokenizers: true",
        )


def _tracks(config: Config, name: str, ds: Dataset) -> list[str]:
    """Those that are read of a dataset."""
    wanted = config.datasets[name].tracks
    if wanted is not None:
        return list(wanted)
    named = [*config.tracks, *(one.name for one in config.outputs.weights.values())]
    return [track for track in dict.fromkeys(named) if track in ds.tracks]


def columns_of(config: Config, datasets: Mapping[str, Dataset]) -> dict[str, dict[str, str]]:
    """Fingerprints of the columns that batches hold, for an order spec."""
    return {
        name: {key: column.fingerprint for key, dataset in datasets.items() if (column := dataset.columns.get(name))}
        for name in config.outputs.columns
    }


def _check_size(spec: OrderSpec, config: Config) -> None:
    count = sum(len(one.weights) for one in spec.segments)
    if count > MAX_WEIGHTS and (config.replay or any(one.ramp for one in spec.segments)):
        raise ConfigError(
            "replay" if config.replay else "phases",
            f"{len(spec.segments)} changes of weights, {count} weights in all; a ramp is 64 changes",
            f"at most {MAX_WEIGHTS}, each of which is in every state",
            "change them less often (odm: every), and without ramps",
        )


def _weight(entry: DatasetConfig, member: Member, by_size: bool) -> float:
    """The first weight of a dataset, 0 for none."""
    epochs = entry.epochs or (1 if by_size else 0)
    return member.windows * epochs if epochs else entry.weight or 0


def _segments(config: Config, members: Mapping[str, Member]) -> tuple[Segment, ...]:
    phases, first_key = list(config.phases), "phases[0].weights"
    if not phases or phases[0].at > 0:
        first_key = "datasets.NAME.weight"
        by_size = config.weights == "by_size"
        given = {name: _weight(config.datasets[name], member, by_size) for name, member in members.items()}
        first = {name: weight for name, weight in given.items() if weight} or dict.fromkeys(members, 1)
        phases.insert(0, Phase(at=0, weights=first))
    shift = len(phases) - len(config.phases)
    for k, one in enumerate(phases):
        key = first_key if k == 0 else f"phases[{k - shift}].weights"
        exact: Mapping[str, float] = exact_weights(tempered(one.weights, config.temperature), key)
        phases[k] = dataclasses.replace(one, weights=dict(exact))
    replayed = replayed_segments(config)
    own_weights = any(entry.weight or entry.epochs for entry in config.datasets.values())
    if replayed and (config.weights == "by_size" or own_weights):
        begun, own = replayed[0].weights, exact_weights(phases[0].weights, "weights")
        if own != begun:
            raise ConfigError(
                "replay",
                f"a run that began with the weights {begun}, and the datasets have {own}",
                "the same",
                "omit datasets.NAME.weight: the log has all weights",
            )
    return with_skips(replayed or planned(phases), config.skip)
