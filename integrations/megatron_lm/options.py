"""The launcher's command line options. Megatron never sees them, so its parser needs no patch."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conceptloader.errors import ConfigError

from .iterators import Stage


@dataclass(frozen=True, kw_only=True)
class Options:
    """config: the YAML of the training data. valid, test: those of the evaluation data, None to cut them off `config`
    with --split. stage: which pipeline stages get concept tensors. accept: differences from the checkpoint's past that
    are taken on purpose.
    """

    config: Path
    valid: Path | None = None
    test: Path | None = None
    stage: Stage
    accept: tuple[str, ...] = ()


def take_options(argv: Sequence[str]) -> tuple[Options | None, list[str]]:
    """(our options, the arguments left for Megatron). None if there are none of ours.

    Raises ConfigError for an unknown option of ours, or one without --conceptloader-config.
    """
    parser = argparse.ArgumentParser(
        prog="conceptloader options", allow_abbrev=False, add_help=False, exit_on_error=False
    )
    parser.add_argument("--conceptloader-config", type=Path)
    parser.add_argument("--conceptloader-valid-config", type=Path)
    parser.add_argument("--conceptloader-test-config", type=Path)
    parser.add_argument("--conceptloader-concept-stage", default=None)
    parser.add_argument("--conceptloader-accept", nargs="+", default=[])
    try:
        found, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    unknown = [word for word in rest if word.startswith("--conceptloader")]
    if unknown:
        known = sorted(action.option_strings[0] for action in parser._actions)
        raise ConfigError(f"{unknown[0]}: no such option, expected one of {', '.join(known)}")
    if found.conceptloader_config is None:
        others = [name for name, value in vars(found).items() if value]
        if others:
            raise ConfigError(f"--{others[0].replace('_', '-')}: needs --conceptloader-config as well")
        return None, rest
    return (
        Options(
            config=found.conceptloader_config,
            valid=found.conceptloader_valid_config,
            test=found.conceptloader_test_config,
            stage=Stage(found.conceptloader_concept_stage or "last"),
            accept=tuple(found.conceptloader_accept),
        ),
        rest,
    )
