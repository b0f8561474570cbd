"""Several processes: the group they form, and evaluation split between them."""
