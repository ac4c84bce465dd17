"""The command line: ``pytriton infer`` and ``pytriton models``."""
