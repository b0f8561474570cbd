"""Attacks: searches for the perturbation that a certificate says does not exist."""

from linfnet.attack.closest import Closest as Closest
from linfnet.attack.closest import Trial as Trial
from linfnet.attack.closest import closest_break as closest_break
from linfnet.attack.objectives import OBJECTIVES as OBJECTIVES
from linfnet.attack.objectives import still_right as still_right
from linfnet.attack.pgd import pgd as pgd
from linfnet.attack.restarts import best_pgd as best_pgd
from linfnet.attack.smoothed import smoothed_logits as smoothed_logits
from linfnet.attack.square import square_attack as square_attack
from linfnet.attack.suite import Attack as Attack
from linfnet.attack.suite import Attacked as Attacked
from linfnet.attack.suite import attack_all as attack_all
from linfnet.attack.suite import check_sandwich as check_sandwich
from linfnet.attack.suite import known_attacks as known_attacks
from linfnet.attack.suite import parse_exponents as parse_exponents
