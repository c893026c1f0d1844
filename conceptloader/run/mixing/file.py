"""Weights of a YAML file, which something outside of the run decides."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conceptloader.base.hashing import canonical_json
from conceptloader.base.strict import Positive, Saved, convert
from conceptloader.base.yamlfile import read_yaml
from conceptloader.errors import ConceptloaderError, ConfigError
from conceptloader.run.mixing.controller import Controller, Weights, saved

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SavedFile(Saved):
    """As JSON. seen: what the last step has found, null if that was wrong. given: what was to be set at last."""

    seen: str
    given: str


class File(Controller):
    """Weights of a file that the first rank reads again in each step. See Controller.

    They are set when two steps have found the same, as a file may be read while it is written, and not again until it
    changes, also where they cannot be set. While it is wrong, they stay as they are, and an error in the log says why.
    """

    learns = False

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._names, self._path, self._said = sorted(weights), options.pop("path", ""), ""
        if options or not self._path or not isinstance(self._path, str):
            raise ConfigError(
                "file",
                repr(options or self._path),
                "a path: mixing: {file: {path: FILE}}",
                "write mixing: {file: {path: FILE}}",
            )
        self._last = saved(SavedFile, state or {"seen": "", "given": ""})

    def look(self) -> str:
        """The weights, as JSON; null where they are wrong."""
        where = f"{self._path}: weights"
        try:
            weights = convert(read_yaml(self._path), dict[str, Positive], where)
            if sorted(weights) != self._names:
                raise ConfigError(
                    where,
                    ", ".join(weights) or "none",
                    f"a weight for each of {', '.join(self._names)}",
                    f"write a weight for each dataset in {self._path}",
                )
        except ConceptloaderError as error:
            if str(error) != self._said:
                logger.error("mixing.file: %s; the weights stay as they are", error)
            self._said = str(error)
            return "null"
        self._said = ""
        return canonical_json(weights)

    def observe(self, step: int, seen: str) -> dict[str, float] | None:
        """See Controller.observe."""
        last = self._last
        weights: dict[str, float] | None = json.loads(seen) if seen == last.seen != last.given else None
        self._last = SavedFile(seen=seen, given=seen if weights else last.given)
        return weights

    def state(self) -> dict[str, Any]:
        """See Controller.state."""
        return dict(vars(self._last))
