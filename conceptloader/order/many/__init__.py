"""Mixtures in lanes. Open lanes.py first: the order in lanes, whose definition is in order/reference.py."""
