"""A plan opened: caches, the choice of keys, ranks and kernels behind one call per layer."""
