"""Training: `fit`, callbacks, the training loop, run folders and checkpoints."""

from linfnet.train.callbacks import Callback as Callback
from linfnet.train.callbacks import Callbacks as Callbacks
from linfnet.train.callbacks import TrainingRun as TrainingRun
from linfnet.train.checkpoint import StoppedError as StoppedError
from linfnet.train.event_log import parse_events as parse_events
from linfnet.train.fit import Fitted as Fitted
from linfnet.train.fit import fit as fit
from linfnet.train.history import EpochEvent as EpochEvent
from linfnet.train.history import History as History
from linfnet.train.history import TestEvent as TestEvent
from linfnet.train.loop import Trainer as Trainer
from linfnet.train.metrics import accuracy as accuracy
from linfnet.train.metrics import predict as predict
from linfnet.train.optimizer import build_optimizer as build_optimizer
from linfnet.train.optimizer import step_state as step_state
from linfnet.train.run_folder import RunFolder as RunFolder
from linfnet.train.run_folder import UnwritableError as UnwritableError
from linfnet.train.run_folder import environment as environment
from linfnet.train.run_folder import new_run_path as new_run_path
