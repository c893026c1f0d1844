"""docs/messy-parquet.md: what its commands print is what stands there."""

from pathlib import Path

import pytest

from tests.docs.test_code_blocks import FENCE, ROOT, run_page


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "messy-parquet.md"
    shown = [found[2].splitlines() for found in FENCE.finditer(page.read_text("utf-8")) if found[1] == "text"]
    monkeypatch.chdir(tmp_path)
    run_page(page)
    printed = capsys.readouterr().out.splitlines()
    missing = [line for block in shown for line in block if line not in printed]
    assert len(shown) > 2
    assert missing == []
