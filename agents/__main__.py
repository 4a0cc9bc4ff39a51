"""``python -m agents``: see :mod:`agents.main`."""

import sys

from agents.main import main

sys.exit(main())
