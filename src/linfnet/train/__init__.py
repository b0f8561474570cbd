"""Training: the loop, its run folder, its checkpoints."""

from linfnet.train.events import parse_events as parse_events
from linfnet.train.loop import StoppedError as StoppedError
from linfnet.train.loop import Trainer as Trainer
from linfnet.train.loop import Watcher as Watcher
from linfnet.train.results import add_results as add_results
from linfnet.train.results import read_results as read_results
from linfnet.train.run_folder import RunFolder as RunFolder
from linfnet.train.run_folder import UnwritableError as UnwritableError
from linfnet.train.run_folder import environment as environment
from linfnet.train.run_folder import go_on as go_on
from linfnet.train.steps import StepValues as StepValues
from linfnet.train.steps import step_values as step_values
from linfnet.train.validation import accuracy as accuracy
from linfnet.train.validation import pixel_batches as pixel_batches
from linfnet.train.validation import predict as predict
