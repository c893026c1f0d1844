"""What is done with datasets as a whole: verify, convert, join, and datasets that refer to the files of others.

Open verify.py first.
"""
