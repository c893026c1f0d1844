"""What people look at: windows with their spans in notebooks and in the pages of `--html`, batches as text.

Open windows.py first, then render.py.
"""

from conceptloader.trace.viewer.notebook import show

__all__ = ["show"]
