"""Bytes: positioned reads of local files, ranges of objects in stores, writing that survives a crash.

Open source.py first, below it handles.py and reads.py for local files, objects.py and stores.py for object stores;
durable.py is for writing.
"""
