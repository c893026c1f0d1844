"""What is done with datasets as a whole: verify, concat, and datasets that refer to the files of others.

Open verify.py first.
"""
