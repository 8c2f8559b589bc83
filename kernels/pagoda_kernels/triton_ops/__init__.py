"""CUDA paths: Triton kernels and their launchers, one module per operator.

The operators import these modules when a CUDA tensor first arrives, so a CPU process never imports
Triton. Launchers trust their arguments: the operators have checked them. Under Triton's interpreter
the launchers also take CPU tensors, which is how they are tested without a GPU.
"""
