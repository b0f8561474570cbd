"""Attacks: searches for the perturbation that a certificate says does not exist."""

from linfnet.attack.pgd import pgd as pgd
