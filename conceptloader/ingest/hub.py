"""Repositories of the Hugging Face hub, in its cache."""

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, InputError

PREFIX = "hub:"
TOKENIZER_FILES = ("*.json", "*.model", "*.jinja", "*.txt")


@dataclass(frozen=True)
class HubName:
    """`hub:OWNER/NAME[/PATH][:SPLIT][@REVISION]`. kind: "dataset" or "model"; path: of a folder or a file in it."""

    given: str
    kind: str
    repository: str
    path: str
    split: str | None
    revision: str | None

    @classmethod
    def parse(cls, given: str, kind: str) -> "HubName":
        name, _, revision = given.removeprefix(PREFIX).partition("@")
        name, _, split = name.partition(":")
        parts = [part for part in name.split("/") if part]
        return cls(given, kind, "/".join(parts[:2]), "/".join(parts[2:]), split or None, revision or None)

    def fetch(self, patterns: Iterable[str]) -> str:
        """Where its path is in the cache of this machine, with the files of these patterns. Raises: InputError."""
        hub = need("huggingface_hub", f"{self.given}: found no huggingface_hub package to fetch it with")
        try:
            found = hub.snapshot_download(
                self.repository, repo_type=self.kind, revision=self.revision, allow_patterns=[*patterns]
            )
        except Exception as error:  # of the hub, or of the network below it
            raise InputError(
                self.given,
                f"nothing that can be fetched ({type(error).__name__}: {str(error).splitlines()[0]})",
                f"a {self.kind} of the hub",
                "check the name, or run `hf auth login`; or run `hf download`, and pass its folder",
            ) from error
        return os.path.join(found, self.path) if self.path else str(found)


def fetched(name: str, kind: str, patterns: tuple[str, ...]) -> str:
    """What a `HubName` is in the hub's cache on this machine, fetched if need be; any other name as it is.

    patterns: of the files that are wanted. Raises: ConfigError, InputError.
    """
    if not name.startswith(PREFIX):
        return name
    hub = HubName.parse(name, kind)
    if hub.split is not None:
        fix = f"pass hub:{hub.repository}/CONFIG/{hub.split}@refs/convert/parquet, which has the files of one split"
        raise ConfigError(name, f"split {hub.split!r} of a {kind}", "hub:OWNER/NAME[/PATH][@REVISION]", fix)
    inside = glob.escape(hub.path)
    return hub.fetch([inside, *(f"{inside}/{pattern}" for pattern in patterns)] if inside else patterns)
