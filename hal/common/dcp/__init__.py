"""Decode context parallelism: tokens shared by the ranks of a group, their choices and results merged into one rank's."""
