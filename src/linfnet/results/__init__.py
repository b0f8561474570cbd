"""Results: one typed record of what an evaluation found, and the file that holds them."""

from linfnet.results.file import add_evaluations as add_evaluations
from linfnet.results.file import read_results as read_results
from linfnet.results.file import results_from_json as results_from_json
from linfnet.results.file import results_to_json as results_to_json
from linfnet.results.file import write_training as write_training
from linfnet.results.result import PGD_100 as PGD_100
from linfnet.results.result import Accuracies as Accuracies
from linfnet.results.result import AttackSettings as AttackSettings
from linfnet.results.result import Result as Result
from linfnet.results.result import Results as Results
from linfnet.results.result import TrainingResult as TrainingResult
