"""The order of many samples, beyond what its kernels do: back from windows, and mixtures in lanes.

Open lanes.py first: the order in lanes, whose definition is in order/reference.py. inverse.py leads back from windows.
"""
