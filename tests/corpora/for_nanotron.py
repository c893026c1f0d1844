"""Three small datasets with documents and concepts, whose tokens are random enough to tell every window apart."""

import numpy as np

from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.finalize import finalize

TOPICS = 8
SIZES = {"web": 12_000, "code": 6_000, "math": 1_500}


def write(folder, vocabulary):
    """Dataset directories by name. A document's topic decides its tokens and concepts: a model can learn them."""
    tokenizer = Tokenizer(name="none", vocab_size=vocabulary, eos_id=0)
    scored = TrackOptions(parameters={"scores": "f4"})
    tracks = {"concepts": TrackOptions(), "rating": scored}
    options = BuildOptions(tokenizer=tokenizer, tracks=tracks, fields={"weight": "f2"})
    paths = {}
    for seed, (name, size) in enumerate(SIZES.items()):
        rng = np.random.default_rng(seed)
        build = create_writer(folder / name, options, plan=[None, None])
        for shard in range(2):
            with build.shard(shard) as writer:
                left = size // 2
                while left > 0:
                    length = min(left, int(rng.integers(20, 150)))
                    topic = int(rng.integers(TOPICS))
                    tokens = 1 + (topic * 30 + rng.integers(60, size=length)) % (vocabulary - 1)
                    tokens[-1] = 0
                    spans = {"concepts": _spans(rng, length, topic), "rating": [(0, length, ([topic], [length / 8]))]}
                    writer.add_document(tokens, spans, f"{name}-{shard}-{left}", {"weight": tokens % 5})
                    left -= length
        finalize(build.path)
        paths[name] = folder / name
    return paths


def _spans(rng, length, topic):
    """Spans over most of a document: its topic, and now and then a second concept."""
    spans, start = [], 0
    while start < length:
        end = min(length, start + int(rng.integers(3, 12)))
        if rng.random() < 0.8:
            spans.append((start, end, [topic] if rng.random() < 0.7 else [topic, TOPICS + topic]))
        start = end
    return spans
