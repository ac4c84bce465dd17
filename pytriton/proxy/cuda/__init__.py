"""Memory of GPUs."""
