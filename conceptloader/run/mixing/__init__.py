"""Mixtures that learn: of the losses of a step, the weights of the datasets from the next step on.

Open controller.py first: what every controller does. A controller computes, and does nothing else: learning.py gives it
losses, has its weights set and keeps its state.
"""

from conceptloader.run.mixing.controller import Controller
from conceptloader.run.mixing.doremi import DoReMi
from conceptloader.run.mixing.odm import ODM

__all__ = ["ODM", "Controller", "DoReMi"]
