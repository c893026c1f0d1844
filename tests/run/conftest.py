"""Two datasets, of which windows can be told apart."""

import pytest

from conceptloader.testing import random_documents, write_dataset


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    for name in ("books", "web"):
        write_dataset(path / name, random_documents(40, seed=len(name)))
    return path


def config_of(data):
    """Plain data for load_config."""
    datasets = {name: {"path": str(data / name), "weight": weight} for name, weight in {"books": 1, "web": 3}.items()}
    return {"seq_len": 64, "seed": 3, "datasets": datasets}


@pytest.fixture
def config(data):
    """Tests change their copy."""
    return config_of(data)
