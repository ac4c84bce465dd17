"""Tensors: arrays from and to shared memory."""
