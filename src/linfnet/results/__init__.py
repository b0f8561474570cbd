"""Results of training and evaluations: typed records, and the files that contain them."""

from linfnet.results.result import PGD_100 as PGD_100
from linfnet.results.result import Accuracies as Accuracies
from linfnet.results.result import AttackSettings as AttackSettings
from linfnet.results.result import ExactAccuracy as ExactAccuracy
from linfnet.results.result import Result as Result
from linfnet.results.result import Results as Results
from linfnet.results.result import TrainingResult as TrainingResult
from linfnet.results.result import guarantee as guarantee
from linfnet.results.storage import add_evaluations as add_evaluations
from linfnet.results.storage import read_results as read_results
from linfnet.results.storage import results_from_json as results_from_json
from linfnet.results.storage import results_to_json as results_to_json
from linfnet.results.storage import write_training as write_training
