"""Certificates of robustness: closed form from the margin, and by interval bounds."""

from linfnet.certify.certificates import certified_by_interval as certified_by_interval
from linfnet.certify.certificates import certified_by_margin as certified_by_margin
from linfnet.certify.certificates import margin_radius as margin_radius
from linfnet.certify.margins import MarginCertificate as MarginCertificate
from linfnet.certify.margins import certify_by_margin as certify_by_margin
from linfnet.certify.radii import interval_radius as interval_radius
