"""`linfnet train` with the authors' kernels in its distance layers: data, seed, order and optimiser are ours.

    python benchmarks/train_by_peer.py FOLDER mnist-0.3 --out RUN --set run.graphs=false

FOLDER is a checkout of the authors' repository L_inf-dist-net-v2 after `python setup.py build_ext --inplace`; the
other arguments go to `linfnet train`. Comparing it with the same command and our kernels shows whether a difference
is caused by a kernel or by the seed.
"""

import sys
from pathlib import Path

from train_step import peer

import linfnet.nn.distance
from linfnet.cli.main import main

if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
linfnet.nn.distance.lp_distance = peer(Path(sys.argv[1]))
sys.exit(main(["train", *sys.argv[2:]]))
