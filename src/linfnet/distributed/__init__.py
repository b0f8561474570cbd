"""Several processes: the group they form, their rendezvous, and evaluation split between them."""
