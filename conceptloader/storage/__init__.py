"""Bytes: positioned reads of local files, ranges of objects in stores, writing that survives a crash.

Open reads.py first for local files, stores.py for object stores, durable.py for writing.
"""
