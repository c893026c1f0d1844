"""What everything stands on: keys, compiled code, text for a terminal.

Open compiled/kernel.py first: the one way in which this project compiles.
"""
