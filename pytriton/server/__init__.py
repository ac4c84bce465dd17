"""The tritonserver subprocess: its flags, its start, its watch, its end."""
