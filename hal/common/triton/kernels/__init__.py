"""The kernels themselves: importing a module of this package needs triton, so it happens inside the call that launches one."""
