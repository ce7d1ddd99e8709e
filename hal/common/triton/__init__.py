"""The portable kernels that CUDA, ROCm and XPU share, in Triton, and the machinery to launch them."""
