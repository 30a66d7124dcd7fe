"""Kernels in the Triton language for decode steps of few rows, whose time goes into reading weights.

Every kernel may be launched while the one before it still runs (programmatic dependent launch): it reads weights at
once, and waits before it touches anything that a kernel wrote. Import these modules only where Triton is installed.
"""
