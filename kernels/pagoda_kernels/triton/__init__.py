"""What Triton kernels of several families share: launching, and floats of one byte.

Triton is imported only by modules that are, or lie in a folder, called ``triton``; operators import
those when a CUDA tensor first arrives, so a CPU process never pays for it. Launchers trust their
arguments: the operators have checked them. Under Triton's interpreter the launchers also take CPU
tensors, which is how they are tested without a GPU.
"""
