"""verify finds every change of every byte."""

from pathlib import Path

import pytest

from conceptloader.errors import FormatError
from conceptloader.format.tools.verify import verify
from tests.raises import raises

BUILD_FILES = ("build.json", ".shard.json")  # of interest to finalize only


def data_files(path):
    return sorted(file for file in path.iterdir() if not file.name.endswith(BUILD_FILES))


@pytest.mark.parametrize("change", [None, lambda data: data[:-1], lambda data: data + b"\0"])
def test_every_missing_shorter_or_longer_file_is_found_by_the_quick_check(dataset, change):
    for file in data_files(Path(dataset.path)):
        content = file.read_bytes()
        if change is None:
            file.unlink()
        elif change(content) == content:  # there is nothing shorter than an empty file
            continue
        else:
            file.write_bytes(change(content))
        if file.name == "manifest.json":
            with raises(FormatError, found="" if change else "build without manifest"):
                verify(dataset.path)
        else:
            assert file.name in [Path(problem.file).name for problem in verify(dataset.path)]
        file.write_bytes(content)
