"""Engines that run the work on parts. The result is the same for any number of workers."""
