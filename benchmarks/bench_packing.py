"""Packs of 4,096 tokens: time for each, fill, cut documents, and what is done before the first; ours, grain's, OLMo's.

Documents of log-normal lengths, 1,000 tokens on average. grain packs a stream of documents, OLMo-core all lengths
of a dataset at once, as its datasets do when they are made; ours are read in a shuffled order, tokens and all.
"""

import itertools
import time
from collections import Counter

import numpy as np
from data import ROOT
from grain import MapDataset
from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset
from harness import US, Contender, Report
from olmo_core.data.utils import InstancePacker

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.blend import open_blend, present

SEQ_LEN, DOCUMENTS, BATCH, BINS = 4096, 40_000, 16, 64
report = Report("packing")
rng = np.random.default_rng(0)
lengths = np.clip(rng.lognormal(np.log(1000) - 0.5, 1, DOCUMENTS), 10, 40_000).astype(np.int64)
path = ROOT / "packing"
if not (path / "manifest.json").exists():
    options = cl.writing.BuildOptions(
        token_type="u2", tokenizer=cl.writing.Tokenizer(name="random", vocab_size=50_000, eos_id=1)
    )
    with cl.writing.create_writer(path, options, plan=[0]).shard(0) as writer:
        for length in lengths.tolist():
            writer.add_document(rng.integers(2, 50_000, length))
    cl.writing.finalize(path)
dataset = cl.open_dataset(path)
print(f"{dataset.num_tokens:,} tokens in {DOCUMENTS:,} documents")


def ours(bins: int | None, order: str = "shuffled") -> Contender:
    config = {"seq_len": SEQ_LEN, "datasets": {"d": {"path": str(path)}}, "order": order}
    config |= {"packing": {"bins": bins}, "outputs": {"cu_seqlens": True}} if bins else {}
    reader, positions = open_reader(open_blend(config)), itertools.count(0, BATCH)

    def read() -> None:
        for _ in range(16):
            first = next(positions) % 8192
            reader.read(np.arange(first, first + BATCH, dtype=np.uint64))

    name = f"conceptloader, {order}, {f'{bins} bins' if bins else 'windows'}"
    return Contender(US if (bins, order) == (BINS, "shuffled") else name, read, 16 * BATCH)


def grain(kind: type, cut: int) -> tuple[Contender, float, float]:
    """Our documents as its stream, cut off at `cut`; with its fill, and the share of tokens that are cut off."""
    documents = MapDataset.range(DOCUMENTS).map(
        lambda k: {"tokens": dataset.tokens(*dataset.document_range(int(k)))[:cut]}
    )
    packed = kind(documents.to_iter_dataset(), length_struct={"tokens": SEQ_LEN}, num_packing_bins=BINS)
    some = [pack for _, pack in zip(range(512), iter(packed), strict=False)]
    fill = float(np.mean([(pack["tokens_segment_ids"] > 0).mean() for pack in some]))
    endless = iter(packed)
    name = f"grain {kind.__name__.removesuffix('PackIterDataset')}, {BINS} bins"
    run = Contender(name, lambda: [next(endless) for _ in range(256)], 256)  # it packs all bins at once
    return run, fill, float(np.maximum(lengths - cut, 0).sum() / lengths.sum())


def packed(bins: int) -> tuple[float, float]:
    """The fill of packs, and the share of documents that are split although they would fit into one."""
    config = {"seq_len": SEQ_LEN, "datasets": {"d": {"path": str(path)}}, "packing": {"bins": bins}}
    view = present(open_blend(config).views, 0)
    assert view.packs is not None
    parts = Counter(part.document for pack in range(view.count) for part in view.packs.parts(pack))
    split = np.mean([size <= SEQ_LEN and parts[k] > 1 for k, size in enumerate(lengths.tolist())])
    return int(lengths.sum()) / (view.count * SEQ_LEN), float(split)


first, first_fill, lost = grain(FirstFitPackIterDataset, SEQ_LEN)
best, best_fill, _ = grain(BestFitPackIterDataset, SEQ_LEN)
contenders = [ours(BINS), ours(16), ours(256), ours(BINS, "sequential"), ours(None), first, best]
report.race("a pack", contenders, unit="us", scale=1e6, repeats=5)
for bins in (16, BINS, 256):
    fill, split = packed(bins)
    report.fact("fill", f"conceptloader, {bins} bins", fill, "of the tokens of a pack")
    report.fact("split without need", f"conceptloader, {bins} bins", split, "of the documents")
ends = np.cumsum(lengths)
cut = float(((ends - 1) // SEQ_LEN > (ends - lengths) // SEQ_LEN).mean())
report.fact("cut", "windows", cut, "of the documents")
report.fact("fill", "grain first fit", first_fill, "of the tokens of a pack")
report.fact("fill", "grain best fit", best_fill, "of the tokens of a pack")
report.fact("cut off and lost", "grain", lost, "of the tokens")

for count in (100_000, 1_000_000, 10_000_000):
    many = np.minimum(np.resize(lengths, count), SEQ_LEN)
    ends = np.cumsum(many)
    packer = InstancePacker(SEQ_LEN)
    start = time.process_time()
    packs, _, tokens = packer.pack_documents(np.stack([ends - many, ends], 1))
    report.fact("before training", f"OLMo-core, {count:,} documents", time.process_time() - start, "s")
report.fact("fill", "OLMo-core", tokens / (len(packs) * SEQ_LEN), "of the tokens of a pack")
joined = ROOT / "packing-many"
if not (joined / "manifest.json").exists():
    cl.concat([path] * (10_000_000 // DOCUMENTS), joined)
for some, count in ((path, DOCUMENTS), (joined, 10_000_000)):
    config = {"seq_len": SEQ_LEN, "packing": {"bins": BINS}, "datasets": {"d": {"path": str(some)}}}
    start = time.process_time()
    open_reader(open_blend(config)).read(np.arange(BATCH, dtype=np.uint64))
    report.fact("before training", f"conceptloader, {count:,} documents", time.process_time() - start, "s")
report.finish()
