"""Bytes: positioned reads of local files, writing that survives a crash.

Open source.py first, below it handles.py and reads.py; durable.py is for writing.
"""
