"""Strategies train: who owns which Gaussian, what crosses the wire, how a step is built."""
