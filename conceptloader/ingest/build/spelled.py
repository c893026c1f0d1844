"""Special tokens that text spells: counted by shard, with the rule that a whole dataset shares."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.write.build import Build

NOTE = "special_tokens"  # the note of a shard's record, where there are any
_FIRST = 64  # shards that each of many tasks looks at


def note(rule: str, names: Mapping[str, int]) -> dict[str, Any]:
    """What a shard keeps. It is not among the options of a build, since most text spells none: all rules are alike."""
    return {"rule": rule, "names": dict(names)}


def check_rule(build: Build, rule: str, shards: Iterable[int]) -> None:
    """The finished ones of `shards`, a task's own, and of the first ones are by this rule. The last step asks all."""
    read_spelled(build, rule, sorted({*shards, *range(min(_FIRST, build.num_shards))}))


def read_spelled(build: Build, rule: str, shards: Iterable[int] | None = None) -> Counter[str]:
    """How often text of the finished shards, or only of `shards`, spells each special token.

    Raises: ConfigError for a shard by another rule, FormatError for a record of a shard that is corrupt.
    """
    found = Counter[str]()
    for shard in range(build.num_shards) if shards is None else shards:
        report = build.report(shard)
        kept = report.notes.get(NOTE) if report else None
        if kept is None:
            continue
        try:
            known, names = kept["rule"], Counter[str](kept["names"])
        except (TypeError, KeyError) as error:
            problem = f"a .shard.json that is not what a writer says ({error!r})"
            expected, fix = (
                "the counts of its special tokens",
                "remove .shard.json of this shard, and run the same build again",
            )
            raise FormatError(f"{build.path}: shard {shard}", problem, expected, fix) from error
        if known != rule:
            raise ConfigError(
                f"{build.path}: special_tokens",
                f"a shard by the rule {known!r}, whose text spells {next(iter(names), '')!r}",
                repr(rule),
                f"continue with --special-tokens {known} in all tasks, or build into a new directory",
            )
        found += names
    return found
