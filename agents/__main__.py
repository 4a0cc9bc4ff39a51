"""``python -m agents``: see :mod:`agents.main`."""

import os
import sys

# ``-m`` imports from the working folder first, whoever may write there; nothing of ours lies anywhere but here.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()) != os.path.realpath(_ROOT):
    del sys.path[0]

from agents.main import main  # noqa: E402

sys.exit(main())
