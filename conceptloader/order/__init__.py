"""Which sample comes when: pure integer functions of (config, seed, global sample index).

Open reference.py first: the definition. Its compiled twins are in kernels.py, and those of its inverse in inverse.py;
mixture.py is what others use.
"""
