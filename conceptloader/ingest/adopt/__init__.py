"""Token files of other libraries as datasets, in place.

Open adopt.py first; megatron.py, datatrove.py and flat.py know one kind of file each.
"""
