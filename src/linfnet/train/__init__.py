"""Training: the training loop, run folders and checkpoints."""

from linfnet.train.checkpoint import StoppedError as StoppedError
from linfnet.train.loop import Display as Display
from linfnet.train.loop import Trainer as Trainer
from linfnet.train.loop import Watcher as Watcher
from linfnet.train.loop import resume_run as resume_run
from linfnet.train.loop import start_run as start_run
from linfnet.train.metrics import accuracy as accuracy
from linfnet.train.metrics import predict as predict
from linfnet.train.optimizer import step_state as step_state
from linfnet.train.run_folder import RunFolder as RunFolder
from linfnet.train.run_folder import UnwritableError as UnwritableError
from linfnet.train.run_folder import environment as environment
from linfnet.train.run_folder import new_run_path as new_run_path
from linfnet.train.run_folder import parse_events as parse_events
from linfnet.train.run_folder import resume_hint as resume_hint
