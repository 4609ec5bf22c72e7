"""``python -m dither`` is the ``dither`` command."""

import sys

from dither.cli import main

sys.exit(main())
