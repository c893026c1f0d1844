"""Batches as tensors: the loader, and datasets and samplers for torch's own DataLoader.

Open loader.py first.
"""
