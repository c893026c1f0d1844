"""The pictures of pages in README.md and docs/, of what `make demo` wrote: `python -m tests.view.screenshots`."""

import io
import tempfile
from pathlib import Path

from PIL import Image

from conceptloader.cli import main as command
from tests.view.browser import resize, start_browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "step": ("trace --run-log demo-output/run --step 180", 1100, 660, False, "header"),
    "window": ("inspect demo-output/datasets/packages --window 744 --seq-len 96", 560, 520, True, "article"),
}


def main():
    with tempfile.TemporaryDirectory() as folder, start_browser() as browser:
        for name, (words, width, height, dark, top) in PAGES.items():
            page = Path(folder, "page.html")
            assert command([*words.split(), "--html", str(page)]) == 0
            resize(browser, width, height, dark)
            browser.get(page.as_uri())
            browser.execute_script("document.querySelector(arguments[0]).scrollIntoView()", top)
            picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
            picture.quantize(64).save(ROOT / f"docs/page-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
