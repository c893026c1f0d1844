"""Whether all ranks are about to do the same. Nothing else in a run compares them: each computes its own samples.

Ranks meet in the key-value store of torch.distributed and not in a collective: that works with any backend, says which
ranks have not come, and a call that one rank omits is an error. A collective of the trainer's group would be paired
with that rank's next one, which may be that of its gradients. It takes time in proportion to the number of ranks, so
they meet at launch, and in a run only when weights may change.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from conceptloader.base.hashing import canonical_json, fingerprint
from conceptloader.errors import ConfigError

logger = logging.getLogger(__name__)

WARN_AFTER_S = 60.0
_SHOWN = 8  # settings that a message lists
_ABSENT = "nothing"


def require_same(
    what: str,
    facts: Mapping[str, Any],
    group: Any = None,
    *,
    of: tuple[int, int] | None = None,
    warn_after_s: float = WARN_AFTER_S,
) -> None:
    """Raise on every rank of a group unless all of them have called this with equal facts.

    Does nothing where torch.distributed is not initialized, or its backend is "fake": there are no other ranks.

    Args:
        what: What ranks are about to do; the same text on all of them.
        facts: JSON values by name; mappings are compared leaf by leaf.
        group: A torch.distributed group that this rank is in; None for all processes.
        of: (a number, how many): this rank's, of which the group has to have each from 0 on.
        warn_after_s: Seconds after which the ranks that have not come are logged, the first time.

    Raises:
        ConfigError: Facts differ: which, on which ranks. Or ranks did not come within the timeout of the store, or no
            rank has one of the numbers.
    """
    if _alone():
        return
    ranks, rank = dist.get_process_group_ranks(group or dist.group.WORLD), dist.get_rank()
    if rank not in ranks:
        raise ConfigError(
            what,
            f"rank {rank}",
            f"a member of the group of ranks {_listed(ranks)}",
            f"pass group= a group with rank {rank}",
        )
    everyone = PrefixStore(f"conceptloader {what} {fingerprint(ranks)}", _get_default_store())
    number = everyone.add(f"rounds of {rank}", 1)
    store, digest, names = PrefixStore(str(number), everyone), fingerprint(facts), {r: f"of {r}" for r in ranks}
    past = PrefixStore(str(number - 1), everyone)
    if number > 1:
        past.delete_key(names[rank])  # the first rank has read it
    mine, size = of or (0, 1)
    store.set(names[rank], f"{digest} {mine}")
    say = warn_after_s, what, names
    if rank == ranks[0]:
        _wait(store, list(names.values()), *say)
        groups: dict[str, list[int]] = {}
        numbers = set[int]()
        for other, value in zip(names, store.multi_get(list(names.values())), strict=True):
            said, _, one = value.decode().partition(" ")
            groups.setdefault(said, []).append(other)
            numbers.add(int(one))
        absent = sorted(set(range(size)) - numbers)
        store.set("groups", json.dumps([groups, absent]))
        if number > 1:
            past.delete_key("groups")  # all ranks have come from there
    else:
        _wait(store, ["groups"], *say)
        groups, absent = json.loads(store.get("groups"))
    if len(groups) == 1 and absent:  # else sizes differ, too
        raise ConfigError(
            what,
            f"no dp_rank {_listed(absent)} of {size} among {len(ranks)} ranks: nobody would read its samples",
            "each dp_rank from 0 on",
            "pass each rank its own dp_rank, and how many there are as dp_size",
        )
    if len(groups) == 1:
        return
    if groups[digest][0] == rank:
        store.set(digest, canonical_json(facts))
    found = {_listed(members): _leaves(json.loads(store.get(one))) for one, members in groups.items()}
    if store.add("read", 1) == len(ranks):
        store.set("all have read", "")
    with contextlib.suppress(dist.DistNetworkError):  # the store ends with a process, which ends once all have read
        _wait(store, ["all have read"], *say)
    raise ConfigError(
        what,
        "values that differ between the ranks",
        "the same value on all of them",
        f"pass the same on every rank; nothing was done:\n{_differing(found)}",
    )


class GroupRanks:
    """The ranks of a torch.distributed group, as run/ranks.py wants them; alone where none is initialized.

    Args:
        group: A group that this rank is in; None for all processes.
        size: How many of them there have to be: data-parallel ranks; None for any number.
    """

    def __init__(self, group: Any = None, size: int | None = None) -> None:
        self._group, self._size = group, size

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """See require_same. Raises ConfigError also for a group of another size."""
        if grouped() is None:
            return
        size = dist.get_world_size(self._group)
        require_same(what, {**facts, "dp_size": self._size}, self._group)
        if self._size not in (None, size):
            raise ConfigError(
                what,
                f"{size} processes in the group and dp_size {self._size}",
                "as many",
                "pass group=, that of the data-parallel ranks",
            )

    def from_first(self, what: str, read: Callable[[], str]) -> str:
        """What `read` returns on the first rank of the group, on all of them. A comparison has to follow.

        Raises ConfigError if the first rank does not come within the timeout of the store.
        """
        if _alone():
            return read()
        ranks = dist.get_process_group_ranks(self._group or dist.group.WORLD)
        store = PrefixStore(f"conceptloader {what} {fingerprint(ranks)}", _get_default_store())
        number = store.add(f"rounds of {dist.get_rank()}", 1)
        if dist.get_rank() == ranks[0]:
            store.set(str(number), read())
            store.delete_key(str(number - 1))  # all have read it: they were compared since
        _wait(store, [str(number)], WARN_AFTER_S, what, {ranks[0]: str(number)})
        return store.get(str(number)).decode()


def grouped() -> int | None:
    """Processes of the process group; None if there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _alone() -> bool:
    return grouped() is None or dist.get_backend() == "fake"


def _wait(store: Store, keys: Sequence[str], warn_after_s: float, what: str, names: Mapping[int, str]) -> None:
    """Return when all keys are set; names: the key that each rank sets first. Raises ConfigError after the timeout."""
    limit: float = store.timeout.total_seconds()  # type: ignore[attr-defined]
    first = min(names)
    for seconds in (min(warn_after_s, limit), max(limit - warn_after_s, 0.001)):
        try:
            store.wait(list(keys), timedelta(seconds=seconds))
            return
        except dist.DistNetworkError:
            raise
        except RuntimeError:  # DistStoreError, or what FileStore raises
            missing = [rank for rank, name in names.items() if not store.check([name])]
            if first in (dist.get_rank(), *missing):  # one line, not one from each rank
                logger.warning("%s: waiting for rank(s) %s", what, _listed(missing))
    raise ConfigError(
        what,
        f"no call within {limit:.0f} s on rank(s) {_listed(missing)}",
        "a call on every rank of the group",
        "call it on all ranks, or look for errors in their logs",
    )


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """Dotted path -> JSON of what is there."""
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in _leaves(item, f"{path}.{key}" if path else key).items()}
    return {path: canonical_json(value)}


def _differing(found: Mapping[str, Mapping[str, str]]) -> str:
    """A line for each leaf that is not the same everywhere. found: ranks -> leaves."""
    paths = list(dict.fromkeys(path for leaves in found.values() for path in leaves))
    differ = [path for path in paths if len({leaves.get(path) for leaves in found.values()}) > 1]
    lines = [
        f"  {path}: " + "; ".join(f"rank(s) {ranks}: {leaves.get(path, _ABSENT)}" for ranks, leaves in found.items())
        for path in differ[:_SHOWN]
    ]
    return "\n".join([*lines, *([f"  and {len(differ) - _SHOWN} more"] if len(differ) > _SHOWN else [])])


def _listed(ranks: Sequence[int]) -> str:
    """Ranks in words, runs of them as first-last."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)
