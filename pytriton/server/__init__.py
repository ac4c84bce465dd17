"""The tritonserver subprocess: its settings, start, supervision and exit."""
