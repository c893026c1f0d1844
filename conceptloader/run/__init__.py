"""A run that lives: its position, its weights, its state and its log. Without torch, and without reading a sample.

Open training.py first.
"""
