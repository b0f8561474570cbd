"""The package as a user imports it: its names, and the marker of type annotations."""

import importlib.resources

import linfnet


def test_the_package_exports_the_sound_certificates_only():
    assert {"certify_images", "certify_by_margin", "certified_by_interval", "certificates_of"} <= set(linfnet.__all__)
    assert all(hasattr(linfnet, name) for name in linfnet.__all__)
    for name in ("certified_by_margin", "margin_radius", "real_certified", "real_margin_radius"):
        assert not hasattr(linfnet, name)
        assert not hasattr(linfnet.certificates, name)


def test_star_import_has_no_submodules():
    namespace: dict[str, object] = {}
    exec("from linfnet import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(linfnet.__all__)


def test_the_package_is_marked_as_typed():
    """PEP 561: type checkers ignore the annotations of a package without this file."""
    assert importlib.resources.files("linfnet").joinpath("py.typed").is_file()
