"""Certificates of robustness: closed form from the margin, and by interval bounds."""

from linfnet.certificates.certificates import certified_by_interval as certified_by_interval
from linfnet.certificates.certificates import certified_by_margin as certified_by_margin
from linfnet.certificates.certificates import margin_radius as margin_radius
from linfnet.certificates.margins import MarginCertificate as MarginCertificate
from linfnet.certificates.margins import certified_shares as certified_shares
from linfnet.certificates.margins import certify_by_margin as certify_by_margin
from linfnet.certificates.radii import interval_radius as interval_radius
from linfnet.certificates.report import Certification as Certification
from linfnet.certificates.report import certify_images as certify_images
from linfnet.certificates.report import plot_curve as plot_curve
from linfnet.certificates.report import write_curve as write_curve
from linfnet.certificates.report import write_radii as write_radii
