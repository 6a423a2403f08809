"""``python -m phaseflip``."""

import sys

from phaseflip.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
