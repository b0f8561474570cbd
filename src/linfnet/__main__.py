"""Run the command line by `python -m linfnet`."""

import sys

from linfnet.cli.main import main

sys.exit(main())
