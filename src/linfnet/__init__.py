"""l-infinity distance nets: networks that are 1-Lipschitz by construction, so that one forward pass is a proof."""

__version__ = "0.1.0"
