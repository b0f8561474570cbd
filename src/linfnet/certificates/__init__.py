"""Certificates of robustness: the margin certificate, the interval certificate, and certificates of other systems.

For an l_inf-distance net, both certificates hold for the floating-point program; so does the interval certificate of a
net with matrix products (`ProductNet`). The module `linfnet.certificates.real` contains the formulas of the paper,
which ignore rounding.
"""

from linfnet.certificates.certified import Certified as Certified
from linfnet.certificates.certified import certify as certify
from linfnet.certificates.exact import Decided as Decided
from linfnet.certificates.exact import ExactRadii as ExactRadii
from linfnet.certificates.exact import decide as decide
from linfnet.certificates.exact import exact_radius as exact_radius
from linfnet.certificates.images import Certificate as Certificate
from linfnet.certificates.images import Certification as Certification
from linfnet.certificates.images import certificates_of as certificates_of
from linfnet.certificates.images import certify_images as certify_images
from linfnet.certificates.images import plot_curve as plot_curve
from linfnet.certificates.images import write_curve as write_curve
from linfnet.certificates.images import write_radii as write_radii
from linfnet.certificates.interval import certified_by_interval as certified_by_interval
from linfnet.certificates.interval import interval_radius as interval_radius
from linfnet.certificates.margin import MarginCertificate as MarginCertificate
from linfnet.certificates.margin import certified_shares as certified_shares
from linfnet.certificates.margin import certify_by_margin as certify_by_margin
from linfnet.certificates.product_net import ProductNet as ProductNet
