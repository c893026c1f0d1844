"""Object stores and servers of files: requests, retries, caches of blocks. Open objects.py first, then stores.py."""
