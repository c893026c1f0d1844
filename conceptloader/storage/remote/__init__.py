"""Object stores and servers of files: requests, caches of blocks. Open objects.py first, then stores.py.

What is tried again is in storage/reads.py, for local files too.
"""
