"""The command line: a module for each command of ``pytriton``, and what they share."""
