"""What a platform's author and a caller of kernels see: values, base classes and errors. It knows no other floor."""
