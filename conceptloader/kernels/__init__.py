"""All compiled code: from sample indices to the arrays of a batch in one call, without the GIL.

Open fill.py first: a batch. kernel.py is how Python calls it, library.py where the machine code comes from, build.py
and lowering.py how it is made. Nothing here imports more of the package than base and errors, so that the machine code
is made of this folder's sources alone.
"""
