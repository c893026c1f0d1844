"""Which sample comes when: pure integer functions of (config, seed, global sample index).

Open mixture.py first, which others use; docs/order.md is the definition, kernels/order.py computes it for arrays.
"""
