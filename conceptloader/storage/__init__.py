"""Bytes: positioned reads of local files, writing that survives a crash.

Open source.py first, below it handles.py and reads.py; objects.py is for URLs, durable.py for writing.
"""
