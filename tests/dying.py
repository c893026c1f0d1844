"""Processes of tests that do not outlive what started them, however that ends."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent():
    """SIGKILL to this process when its parent is gone; it stays through exec. Ranks of torchrun have sessions of their
    own, where no Ctrl-C and no signal to a group arrives."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
