"""Reproduce the tables of the paper: studies as data, a runner that resumes them, and their outcomes and plots."""

from linfnet.reproduce.outcome import SMALL as SMALL
from linfnet.reproduce.outcome import Options as Options
from linfnet.reproduce.outcome import Outcome as Outcome
from linfnet.reproduce.outcome import RunOutcome as RunOutcome
from linfnet.reproduce.outcome import spreads as spreads
from linfnet.reproduce.runner import run_study as run_study
from linfnet.reproduce.studies import STUDIES as STUDIES
from linfnet.reproduce.studies import Cell as Cell
from linfnet.reproduce.studies import Figures as Figures
from linfnet.reproduce.studies import Study as Study
from linfnet.reproduce.studies import table1_with as table1_with
