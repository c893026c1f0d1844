"""Trainers of one server, which imports torch once for all of them."""

from importlib import import_module
from importlib.util import find_spec

for name in ("lightning", "transformers", "accelerate"):
    if find_spec(name):
        globals()[f"run_{name}"] = import_module(f"tests.trainers.run_{name}")
