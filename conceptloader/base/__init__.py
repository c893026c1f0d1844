"""What everything stands on: keys and fingerprints, checks of integers and of plain data, text for a terminal.

Open hashing.py first: where every key comes from.
"""
