"""Which files an input stands for: those that the library which wrote a directory would read, of one split.

Open find.py first; layouts.py has a class for each kind of directory.
"""
