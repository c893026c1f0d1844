"""Bytes from object stores: ranges of objects by URL, retried, in parallel, with bounded caches of blocks.

Nothing here is imported for datasets in local directories.
"""
