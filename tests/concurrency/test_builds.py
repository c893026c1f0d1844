"""Builds beside builds and readers, and on disks that are full."""

import os
import threading

import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, FormatError
from tests.soak.builds import build, contents, write_input


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_input(tmp_path_factory.mktemp("input") / "corpus.jsonl", documents=40)


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "ds"
    build(source, out)
    return contents(out)


def test_two_builds_into_one_directory(tmp_path, source, wanted):
    """Both write the same bytes under the same names: whoever loses a race gets an error, the dataset is whole."""

    def attempt():
        try:
            build(source, tmp_path / "ds")
        except ConceptloaderError as error:
            os.write(2, f"{error}\n".encode())

    processes = []
    for _ in range(3):
        process = os.fork()
        if not process:
            code = 1
            try:
                attempt()
                code = 0
            finally:
                os._exit(code)
        processes.append(process)
    assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0, 0], "none fails but with an error of ours"
    if not (tmp_path / "ds" / "manifest.json").exists():
        build(source, tmp_path / "ds")
    left = {name: data for name, data in contents(tmp_path / "ds").items() if not name.endswith(".tmp")}
    assert left == wanted
    assert cl.verify(tmp_path / "ds", full=True) == []


def test_readers_beside_a_build_see_nothing_or_all(tmp_path, source):
    out = tmp_path / "ds"
    done = threading.Event()
    seen = []
    refused = []
    problems = []

    def reader():
        while not done.is_set() or not seen:
            try:
                seen.append(int(cl.open_dataset(out).tokens(0, 100).sum()))
            except (FormatError, ConfigError) as error:
                refused.append(type(error))
            except BaseException as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    build(source, out)
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert refused
    assert len(set(seen)) == 1
