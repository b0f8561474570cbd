"""`python -m linfnet` is the command line."""

import sys

from linfnet.cli.main import main

sys.exit(main())
