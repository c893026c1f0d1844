"""`python -m conceptloader` is the command `conceptloader`."""

import sys

from conceptloader.cli import main

if __name__ == "__main__":
    sys.exit(main())
