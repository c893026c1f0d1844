"""Batches: as numpy arrays (batch/), and as tensors for torch (torch/). Open loader/batch/loader.py first."""
