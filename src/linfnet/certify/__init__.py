"""Certificates of robustness: closed form from the margin, and by interval bounds."""

from linfnet.certify.certificates import certified_by_interval as certified_by_interval
from linfnet.certify.certificates import certified_by_margin as certified_by_margin
from linfnet.certify.certificates import margin_radius as margin_radius
from linfnet.certify.margins import MarginCertificate as MarginCertificate
from linfnet.certify.margins import certified_shares as certified_shares
from linfnet.certify.margins import certify_by_margin as certify_by_margin
from linfnet.certify.radii import interval_radius as interval_radius
from linfnet.certify.report import Certification as Certification
from linfnet.certify.report import certify_images as certify_images
from linfnet.certify.report import plot_curve as plot_curve
from linfnet.certify.report import write_curve as write_curve
from linfnet.certify.report import write_radii as write_radii
