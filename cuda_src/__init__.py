"""Operators of 3D Gaussian Splatting on tensors: no ranks, no files, nothing of the layers above."""
