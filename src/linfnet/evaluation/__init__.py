"""Evaluation of a net on labelled data: clean, attacked and certified accuracy."""

from linfnet.evaluation.evaluator import evaluate as evaluate
from linfnet.evaluation.evaluator import own_images as own_images
from linfnet.evaluation.files import save_evaluation as save_evaluation
from linfnet.evaluation.outcome import EXAMPLES as EXAMPLES
from linfnet.evaluation.outcome import AtEpsilon as AtEpsilon
from linfnet.evaluation.outcome import Broken as Broken
from linfnet.evaluation.outcome import Evaluation as Evaluation
