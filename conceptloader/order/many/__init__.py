"""The order in arrays, beyond what its kernels do: inverse.py, back from windows; lanes.py, mixtures in lanes."""
