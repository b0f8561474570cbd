"""Training and evaluation by several processes: the group of processes, and how an evaluation is divided."""
