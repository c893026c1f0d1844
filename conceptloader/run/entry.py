"""What a front end carries out of a configuration, beyond reading its samples in their order, which all of them do."""

import json
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, get_args

from conceptloader.base.strict import unknown
from conceptloader.base.version import PAGES
from conceptloader.config import Config
from conceptloader.config.add_ons import ADD_ONS, add_on
from conceptloader.config.schema import LoaderConfig
from conceptloader.errors import ConfigError
from conceptloader.kernels.arrays import Outputs

logger = logging.getLogger(__name__)

Part = Literal["weights", "losses", "observers", "threads", "pin_memory", "balance"]
"""weights: they may change while it reads. losses: those of each step reach the run. observers: they are told of each
micro batch. threads: it reads in threads of its own, with the options of `loader` for these. pin_memory: its batches
are tensors that it makes. balance: its ranks read what `TrainingRun.deal` gives them.
"""
_OF_THREADS = ("num_threads", "prefetch_batches", "prefetch_bytes", "warn_after_s", "timeout_s")
_OF_LOADER: dict[str, Part] = {**dict.fromkeys(_OF_THREADS, "threads"), "pin_memory": "pin_memory"}
"""Of the keys about the speed of reading, what a front end has to carry out."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A front end, for the one check of a configuration at launch.

    Attributes:
        name: For messages.
        carries: What it carries out; a configuration that asks for more raises.
        keys: Names that it gives to arrays of its own in a batch.
        lacks: Keys of `outputs` that it has no place for, and why; other values than the default raise.
        allow: How accepted differences are given to it: {json} stands for a list of their names, {words} for the names.
        fix: What to do for what it does not carry out.
    """

    name: str
    carries: frozenset[Part] = frozenset()
    keys: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    allow: str = "allow_changed={json}"
    fix: str = f"omit it, or train with make_dataloader, which has it: {PAGES}/configuration.md#which-key-works-where"

    def __post_init__(self) -> None:
        for part in sorted(self.carries - {*get_args(Part)}):
            raise unknown(f"Entry {self.name}: carries", part, get_args(Part), "part")
        for name in sorted(self.lacks.keys() - vars(Outputs())):
            raise unknown(f"Entry {self.name}: lacks", name, vars(Outputs()), "key of outputs")

    def allowing(self, names: Collection[str]) -> str:
        """How these differences are accepted here."""
        return self.allow.format(json=json.dumps(list(names)), words=" ".join(names))

    def check(self, config: Config) -> None:
        """Raise ConfigError for a key that would have no effect here, and for names that this entry replaces.

        It looks at nothing but the configuration, so that all ranks raise or none. Keys about the speed of reading,
        which change no batch, are only logged: one configuration may serve several front ends.
        """
        for key in ADD_ONS:
            if attrgetter(key)(config):
                self.need(key, *add_on(key).NEEDS)
        if config.writes_losses:
            self.need("metrics.losses", "losses", "which is given no losses")
        for name, part in _OF_LOADER.items():
            given = getattr(config.loader, name) != getattr(LoaderConfig, name)
            if given and part not in self.carries and os.environ.get("RANK", "0") == "0":
                logger.warning("loader.%s: has no effect in %s, which reads in another way", name, self.name)
        if config.loader.balance:
            self.need("loader.balance", "balance", "whose ranks take samples in another way")
        for name, why in self.lacks.items():
            if getattr(config.outputs, name) != getattr(Outputs(), name):
                raise ConfigError(
                    f"outputs.{name}",
                    f"another value than the default in {self.name}",
                    "the default",
                    f"omit outputs.{name}: {why}",
                )
        named = [("field", name) for name in config.outputs.fields]
        named += [("column", name) for name in config.outputs.columns]
        for kind, name in named:
            if name in self.keys:
                raise ConfigError(
                    f"outputs.{kind}s.{name}",
                    f"a {kind} of that name, which {self.name} gives to an array of its own in each batch",
                    "another name",
                    f"build the dataset with the {kind} under another name, or read it with make_dataloader",
                )

    def need(self, key: str, part: Part, why: str) -> None:
        """Raise ConfigError for a key that would have no effect here, and say why, unless this part is carried out."""
        if part not in self.carries:
            raise ConfigError(key, f"found in a configuration for {self.name}, {why}", fix=self.fix)


ANY = Entry(name="any front end", carries=frozenset(get_args(Part)))
"""Of what is opened before it is known what will read it."""
