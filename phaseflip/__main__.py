"""``python -m phaseflip``."""

import sys

from phaseflip.cli import main

if __name__ == "__main__":
    sys.exit(main())
