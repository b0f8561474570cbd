"""The paper's theory as working code."""

from linfnet.theory.construct import nearest_neighbour_net as nearest_neighbour_net
