"""One small corpus for all tests of the adapter."""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.corpora import for_nanotron
from tests.nanotron import support
from tests.nanotron.plan import Oracle

WEIGHTS = {"web": 0.6, "code": 0.3, "math": 0.1}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Dataset directories by name."""
    return for_nanotron.write(tmp_path_factory.mktemp("corpus"), support.VOCABULARY)


@pytest.fixture(scope="session")
def dataset(data):
    """The `dataset:` section of a data stage that mixes all three."""
    members = {name: {"path": str(data[name]), "weight": weight} for name, weight in WEIGHTS.items()}
    return {"type": "conceptloader", "datasets": members}


@pytest.fixture(scope="session")
def oracle(data):
    """What that mixture is made of."""
    return Oracle(data, WEIGHTS, support.SEQ_LEN)


@pytest.fixture(scope="session")
def nanotron_src():
    """A checkout of nanotron main. Tests that ask for it are reported as not run without one."""
    if not os.environ.get("NANOTRON_SRC"):
        pytest.skip("not run: set NANOTRON_SRC to a checkout of nanotron main (see docs/nanotron.md)")
    return Path(os.environ["NANOTRON_SRC"])


@pytest.fixture
def train(nanotron_src, tmp_path, dataset):
    """Runs of its run_train.py."""
    return partial(support.train, tmp_path, dataset=dataset)
