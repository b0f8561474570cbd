"""Reports: a self-contained HTML page about one run or several, and training curves for the terminal."""

from linfnet.report.page import render as render
from linfnet.report.run_summary import RunSummary as RunSummary
from linfnet.report.run_summary import read_run as read_run
from linfnet.report.run_summary import read_training as read_training
