"""Mixtures that learn: of the losses of a step, the weights of the datasets from the next step on.

Open controller.py first: what every controller does. A controller computes, and does nothing else: torch/mixing.py
gives it losses, sets its weights and keeps its state.
"""
