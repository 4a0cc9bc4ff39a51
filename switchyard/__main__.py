"""Runs the ``yard`` command as ``python -m switchyard``."""

import sys

from switchyard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
