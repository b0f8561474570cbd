"""The one exception that a user's mistake turns into: the command line prints it as one line and exits with 2."""


class LinfnetError(Exception):
    """Something the user can mend: a wrong argument, a missing file, a folder that holds something else."""


class ArgumentError(LinfnetError, ValueError):
    """An argument is out of its range; the message names it, what it got and what it wanted."""
