"""Windows of 4,097 tokens from an object store that answers after 20 ms (a server on this machine), batches of 16.

A process each, at once from an empty cache: samples a second after the first batch, that batch, requests and bytes a
window. It needs aiohttp beside what `make bench` installs; without mosaicml-streaming that is left out. datatrove reads
through fsspec's http, litdata through obstore, which has to be told that http will do, mosaicml-streaming through
boto3; of torchvision, which it imports for its images alone, there is a stand-in.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from data import HERE, ROOT, corpus, stream_of
from harness import US, Report, program
from peers import litdata_chunks

DELAY, BATCH, BATCHES = 0.02, 16, 40
TIMEOUT_S = 300

START = """
import os, time
import torch
torch.set_num_threads(1)
if __name__ == "__main__":
"""
OURS = """
    import conceptloader as cl
    began = time.perf_counter()
    loader = cl.make_dataloader({{"seq_len": 4096, "datasets": {{"web": {{"path": {path!r}}}}},
        "loader": {{"num_threads": 4, "prefetch_batches": 8}}}}, micro_batch_size={batch})
    batches = iter(loader)
"""
DATATROVE = """
    from datatrove.utils.dataset import DatatroveFileDataset
    from torch.utils.data import DataLoader, RandomSampler
    began = time.perf_counter()
    dataset = DatatroveFileDataset({url!r}, 4096, token_size=2)
    sampler = RandomSampler(dataset, num_samples=({batches} + 9) * {batch})
    batches = iter(DataLoader(dataset, batch_size={batch}, sampler=sampler, num_workers=4,
        multiprocessing_context="spawn"))
"""
LITDATA = """
    import litdata.streaming.downloader as downloader
    downloader._OBSTORE_CLIENT_OPTIONS = {{**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}}
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
    began = time.perf_counter()
    dataset = StreamingDataset("s3://litdata", item_loader=TokensLoader(4097), shuffle=True, cache_dir={cache!r},
        storage_options={{"endpoint_url": {endpoint!r}, "aws_access_key_id": "x", "aws_secret_access_key": "x",
                          "region_name": "us-east-1"}})
    batches = iter(StreamingDataLoader(dataset, batch_size={batch}, num_workers=2))
"""
NO_IMAGES = """
import importlib.machinery, sys, types
class Absent(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = Absent(name)
    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
"""
STREAMING = """
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader
    began = time.perf_counter()
    dataset = StreamingDataset(remote="s3://streaming", local={cache!r} + "/streaming", shuffle=True,
        batch_size={batch}, shuffle_seed=1)
    batches = iter(DataLoader(dataset, batch_size={batch}, num_workers=1))
"""
FINISH = """
    next(batches)
    first = time.perf_counter() - began
    for _ in range({batches} - 1):
        next(batches)
    print([first, ({batches} - 1) * {batch} / (time.perf_counter() - began - first)], flush=True)
    os._exit(0)
"""


def streaming_shards(stream, folder):
    """The same windows in shards of mosaicml-streaming, of 64 MiB, its default."""
    if not (folder / "index.json").exists():
        code = f"""{NO_IMAGES}
import numpy as np
from streaming import MDSWriter
tokens = np.fromfile({stream!r}, np.uint16)
with MDSWriter(out={str(folder)!r}, columns={{"tokens": "ndarray:uint16:4097"}}, size_limit=1 << 26) as out:
    for start in range(0, len(tokens) - 4096, 4096):
        out.write({{"tokens": tokens[start : start + 4097]}})
print(0)
"""
        program(code)


folder = ROOT / "objects"
stream = stream_of(corpus("objects/web"))
litdata_chunks(np.fromfile(stream, np.uint16), folder / "litdata")
server = subprocess.Popen([sys.executable, HERE / "object_server.py", folder, str(DELAY)], stdout=-1, text=True)
endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
environment = {
    "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true", "S3_ENDPOINT_URL": endpoint,
}  # fmt: skip
programs = {US: OURS, "datatrove, 4 workers": DATATROVE, "litdata, 2 workers": LITDATA}
if find_spec("streaming"):
    streaming_shards(stream, folder / "streaming")
    programs["mosaicml-streaming, 1 worker"] = STREAMING


def counted():
    """Requests and bytes since it was called last."""
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/-", method="DELETE")) as answer:
        return json.load(answer)


found = {}
with tempfile.TemporaryDirectory() as cache:
    asked = {"batch": BATCH, "batches": BATCHES, "endpoint": endpoint, "cache": cache, "path": "s3://web"}
    asked["url"] = f"{endpoint}/web/{Path(stream).name}"
    for name, text in programs.items():
        counted()
        code = NO_IMAGES * (text is STREAMING) + START + (text + FINISH).format(**asked)
        first, rate = program(code, timeout=TIMEOUT_S, **environment)
        counts, windows = counted(), BATCH * BATCHES
        found[name] = [1e3 / rate, first, counts["requests"] / windows, counts["bytes"] / windows / (2 * 4097)]
server.kill()
report = Report("objects")
rows = {"a window, after the first batch": "ms", "first batch": "s", "requests a window": "", "bytes a window": "x"}
for k, (row, unit) in enumerate(rows.items()):
    report.add(row, unit, {name: [values[k]] for name, values in found.items()})
report.finish()
