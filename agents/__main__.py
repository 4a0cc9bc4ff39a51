"""``python -m agents``: see :mod:`agents.main`."""

import os
import sys

# ``-m`` imports from the working folder first, which others may write to, so it is removed from the path.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()) != os.path.realpath(_ROOT):
    del sys.path[0]

from agents.main import main  # noqa: E402

sys.exit(main())
