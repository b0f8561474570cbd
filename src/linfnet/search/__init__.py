"""Compare variants of a recipe by short runs: trials with several seeds, tested on held-out training images."""

from linfnet.search.outcome import SearchOutcome as SearchOutcome
from linfnet.search.outcome import Summary as Summary
from linfnet.search.outcome import TrialOutcome as TrialOutcome
from linfnet.search.plan import Trial as Trial
from linfnet.search.runner import search as search
from linfnet.search.variants import Variant as Variant
from linfnet.search.variants import grid as grid
from linfnet.search.variants import read_variants as read_variants
