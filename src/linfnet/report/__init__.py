"""Reports: one run or several as an HTML page without external parts, and training curves for the terminal."""

from linfnet.report.page import render as render
from linfnet.report.run_summary import RunSummary as RunSummary
from linfnet.report.run_summary import read_run as read_run
from linfnet.report.run_summary import read_training as read_training
