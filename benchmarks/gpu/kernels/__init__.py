"""Kernels: the tests on the device, and every case checked, timed and set beside baselines."""
