"""Annotations of pieces of documents that stand in files of their own: joined to the documents, then built as spans.

Open options.py first, then join.py.
"""
