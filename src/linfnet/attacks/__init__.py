"""Attacks: searches for the perturbation that a certificate says does not exist."""

from linfnet.attacks.closest import Closest as Closest
from linfnet.attacks.closest import Trial as Trial
from linfnet.attacks.closest import closest_break as closest_break
from linfnet.attacks.objectives import OBJECTIVES as OBJECTIVES
from linfnet.attacks.objectives import still_right as still_right
from linfnet.attacks.pgd import pgd as pgd
from linfnet.attacks.restarts import best_pgd as best_pgd
from linfnet.attacks.smoothed import smoothed_logits as smoothed_logits
from linfnet.attacks.square import square_attack as square_attack
from linfnet.attacks.suite import Attack as Attack
from linfnet.attacks.suite import Attacked as Attacked
from linfnet.attacks.suite import attack_all as attack_all
from linfnet.attacks.suite import check_sandwich as check_sandwich
from linfnet.attacks.suite import known_attacks as known_attacks
from linfnet.attacks.suite import parse_exponents as parse_exponents
