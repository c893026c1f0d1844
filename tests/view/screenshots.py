"""The pictures of docs/runs.md, from the demo's corpus: `python -m tests.view.screenshots`."""

import io
import json
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from conceptloader.cli import main as command
from conceptloader.trace import open_run
from conceptloader.viewer.server import Server
from conceptloader.viewer.source import Looked
from tests.view.browser import start_browser
from tests.view.conftest import log_start

ROOT = Path(__file__).resolve().parents[2]
PICTURES = [
    ("window", "window?d=packages&i=9", 1100, 760, False),
    ("mixture", "mixture", 1100, 760, False),
    ("step", "step?n=60", 1100, 760, True),
    ("telephone", "window?d=packages&i=9", 390, 760, True),
]


def make_run(folder: Path) -> Looked:
    """Three datasets of modules of the standard library, with a run in its midst."""
    sys.path.insert(0, str(ROOT / "examples/demo"))
    from corpus import read_modules  # type: ignore[import-not-found]

    rows: dict[str, list[Any]] = defaultdict(list)
    for module in read_modules()[0]:
        spans = [{"start": start, "end": end, "concepts": [concept]} for start, end, concept in module.spans]
        rows[module.dataset].append({"id": module.name, "text": module.text, "spans": spans})
    for name, own in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own[:60]))
    named = {concept for own in rows.values() for row in own for span in row["spans"] for concept in span["concepts"]}
    (folder / "concepts.txt").write_text("\n".join(sorted(named)))
    for name in rows:
        more = ["--tokenizer", "bytes", "--vocabulary", str(folder / "concepts.txt"), "--overlap", "union"]
        assert command(["build", str(folder / f"{name}.jsonl"), "--out", str(folder / name), *more]) == 0
    names = sorted(rows)
    config = {
        "seq_len": 1024,
        "datasets": {name: {"path": name, "weight": 1 + 2 * k} for k, name in enumerate(names)},
        "phases": [{"start": 3000, "weights": {names[0]: 1, names[-1]: 1}}],
        "tracks": {"concepts": {}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    log_start(folder / "run.yaml", folder)
    (folder / "latest.txt").write_text("240")
    run = open_run(folder / "run.yaml", folder)
    return Looked(title="run.yaml", run=run, samples=6000, log=str(folder))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, start_browser() as browser, Server(make_run(Path(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, view, width, height, dark in PICTURES:
            browser.resize(width, height, dark)
            browser.open(f"{server.url}#{view}")
            picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
            picture.quantize(128).save(ROOT / f"docs/view-{name}.png", optimize=True)
        server.shutdown()


if __name__ == "__main__":
    main()
