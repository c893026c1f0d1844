"""What a build did, and a dataset that is there already."""

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from conceptloader.base.hashing import canonical_json
from conceptloader.errors import ConceptloaderError, ConfigError
from conceptloader.format.read.files import load_manifest
from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.build import (
    describe_vocabularies,
    difference,
    open_writer,
)
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.build.plan import Plan
from conceptloader.ingest.build.unaligned import Losses, read_losses, read_spelled
from conceptloader.ingest.records.inputs import Source, check_since_start
from conceptloader.storage.lock import LOCK, build_lock

log = logging.getLogger(__name__)


@dataclass
class Summary:
    """What a build did. lost_spans: spans that got no token, in all and, with examples, by track in `losses`.

    special_tokens: how often texts spelled each one. doubled: documents that had the eos or bos already that they got.
    compared: documents of which gigatoken's ids were compared with those of tokenizers; slowed: that tokenizers
    encoded; slow: why it was not used. unprinted: fields of messages that the chat template omitted, by name.
    guessed_eos: name of the eos if only its name says that it is one. These, bad records and truncated conversations
    are those of this run, all else is of the whole dataset.
    """

    path: str
    shards: int
    kept_shards: int
    documents: int
    tokens: int
    lost_spans: int
    losses: Losses
    bad_records: int = 0
    seconds: float = 0.0
    truncated: int = 0
    special_tokens: dict[str, int] = field(default_factory=dict)
    doubled: int = 0
    unprinted: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    slowed: int = 0
    slow: str = ""
    guessed_eos: str = ""


def describe_complete(
    path: str, sources: Sequence[Source], options: BuildOptions, plan: Plan, limits: Options
) -> Summary:
    """The summary of a dataset that is there already, if it is this one."""
    if os.path.lexists(os.path.join(path, LOCK)):  # a build was killed after its last step
        with contextlib.suppress(ConceptloaderError), build_lock(path):
            pass
    found = open_writer(path)
    built = {"options": found.options.to_json(found.vocabularies), "inputs": found.inputs, "plan": found.plan}
    inputs = [source.to_json() for source in sources]
    asked = {"options": options.to_json(found.vocabularies), "inputs": inputs, "plan": plan}
    problem = None
    if canonical_json(built) != canonical_json(asked):
        problem = difference(built, asked)
    elif other := [t for t, entry in describe_vocabularies(options)[0].items() if entry != found.vocabularies.get(t)]:
        problem = f"other concept names (track {', '.join(other)})"
    if problem:
        raise ConfigError(
            path,
            f"a complete dataset of {problem}",
            "a new directory",
            f"pass another --out, or run `rm -r {path}`: nothing was changed",
        )
    check_since_start(path, sources)
    manifest, _ = load_manifest(path, None)
    log.info("%s is complete already", path)
    losses = read_losses(found)
    losses.check(limits.max_unaligned_spans, path, "the dataset is complete and stays as it is")
    shards, documents, tokens = found.num_shards, manifest.num_documents, manifest.num_tokens
    counts = path, shards, shards, documents, tokens, losses.lost, losses
    return Summary(*counts, special_tokens=read_spelled(found))
