"""Selecting from a dataset: which documents an expression holds of, and the views that are made of them.

Open views.py first.
"""
