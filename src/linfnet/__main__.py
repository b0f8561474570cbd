"""Run the command line by `python -m linfnet`."""

import sys

from linfnet.cli.start import main

sys.exit(main())
