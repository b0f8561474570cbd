"""The tables of the paper that `linfnet reproduce` knows."""

from linfnet.reproduce.ablations import ABLATION, ADAM, BUDGET, GRID, LAMBDA, THETA
from linfnet.reproduce.study import Cell, Figures, Study

TABLE1 = Study(
    "table1",
    "the paper's main table: clean, PGD-100 and certified accuracy",
    (
        Cell("mnist-0.1", "mnist-0.1", (), Figures(98.93, 98.03, 97.95), Figures(98.85, 98.10, 97.96)),
        Cell("mnist-0.3", "mnist-0.3", (), Figures(98.56, 94.73, 93.20), Figures(98.49, 94.78, 93.31)),
        Cell("cifar10-2", "cifar10-2", (), Figures(60.61, 54.28, 54.12), Figures(60.81, 54.67, 54.31)),
        Cell("cifar10-8", "cifar10-8", (), Figures(54.30, 41.84, 40.06), Figures(54.21, 42.28, 40.13)),
        Cell("cifar10-16", "cifar10-16", (), Figures(48.50, 32.73, 29.04), Figures(48.58, 32.91, 29.17)),
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in (TABLE1, ABLATION, LAMBDA, THETA, GRID, BUDGET, ADAM)}
