"""Attacks search for misclassified images within epsilon; the accuracy under attack is an upper bound on robustness."""

from linfnet.attacks.minimal import Closest as Closest
from linfnet.attacks.minimal import Strongest as Strongest
from linfnet.attacks.minimal import Trial as Trial
from linfnet.attacks.minimal import closest_break as closest_break
from linfnet.attacks.minimal import strongest_within as strongest_within
from linfnet.attacks.outcome import Attack as Attack
from linfnet.attacks.outcome import Attacked as Attacked
from linfnet.attacks.outcome import other_class as other_class
from linfnet.attacks.pgd import OBJECTIVES as OBJECTIVES
from linfnet.attacks.pgd import best_pgd as best_pgd
from linfnet.attacks.pgd import pgd as pgd
from linfnet.attacks.pgd import smoothed_logits as smoothed_logits
from linfnet.attacks.single import NamedAttack as NamedAttack
from linfnet.attacks.single import UserAttack as UserAttack
from linfnet.attacks.single import attack as attack
from linfnet.attacks.single import named_attack as named_attack
from linfnet.attacks.square import square_attack as square_attack
from linfnet.attacks.suite import ATTACKS as ATTACKS
from linfnet.attacks.suite import DEFAULT_ATTACKS as DEFAULT_ATTACKS
from linfnet.attacks.suite import attack_all as attack_all
from linfnet.attacks.suite import check_sandwich as check_sandwich
from linfnet.attacks.suite import known_attacks as known_attacks
from linfnet.attacks.suite import parse_exponents as parse_exponents
