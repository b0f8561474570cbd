"""Reports: a run, or several, as one page that can be opened, sent and trusted."""

from linfnet.report.page import render as render
from linfnet.report.run_summary import RunRecord as RunRecord
from linfnet.report.run_summary import read_run as read_run
from linfnet.report.run_summary import read_training as read_training
