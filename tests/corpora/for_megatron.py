"""Two small datasets of ours with concepts, for runs of real training scripts."""

import numpy as np
import yaml

from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.finalize import finalize

EOD, TOPICS = 255, 16
SIZES = {"code": 4_000, "web": 9_000}


def write_datasets(folder, first_seed=0):
    """Datasets `code` and `web` of documents that end in EOD; every token lies in a span of track `topic`, and in one
    of `rating`, whose concepts have whole numbers for scores. Fields `weight`, 0 to 4, and `parity`; track `length`, a
    number for each document."""
    options = BuildOptions(
        tokenizer=Tokenizer(name="none", vocab_size=256, eos_id=EOD),
        tracks={
            "topic": TrackOptions(),
            "rating": TrackOptions(parameters={"scores": "f4"}),
            "length": TrackOptions(codec="numpy", parameters={"dtype": "u2"}),
        },
        fields={"weight": "f2", "parity": "u1"},
    )
    for seed, (name, size) in enumerate(SIZES.items(), first_seed):
        rng = np.random.default_rng(seed)
        build = create_writer(folder / name, options, plan=[None, None])
        for shard in range(2):
            with build.shard(shard) as writer:
                for _ in range(size // 60):
                    length = int(rng.integers(2, 60))
                    tokens = [*rng.integers(0, EOD, length - 1).tolist(), EOD]
                    cut = int(rng.integers(1, length))
                    topics = [sorted(rng.choice(TOPICS, 2, replace=False).tolist()) for _ in range(2)]
                    spans = [(0, cut, topics[0][:1]), (cut, length, topics[1])]
                    ratings = [(0, length, (topics[1], rng.integers(1, 100, 2)))]
                    tracks = {"topic": spans, "rating": ratings, "length": [(0, length, np.array([length], "u2"))]}
                    fields = {"weight": np.array(tokens) % 5, "parity": np.array(tokens) % 2}
                    writer.add_document(tokens, tracks, fields=fields)
        finalize(build.path)
    return folder


def write_config(path, **changes):
    """A YAML beside the datasets that blends both, with concept tensors."""
    config = {
        "seed": 11,
        "datasets": {"code": {"path": "code", "weight": 0.3}, "web": {"path": "web", "weight": 0.7}},
        "tracks": {"topic": {}},
    }
    path.write_text(yaml.safe_dump({**config, **changes}, sort_keys=False))
    return path
