"""Preflight: checks of machines, run folder, network and disk before the first step of a run of several workers.

A single worker checks only its device and the disk space.

Checks of one config on one machine come earlier, before anything starts (`compose.checks`); that all nodes have the
same run and software is checked at rendezvous (`launch.rendezvous`).
"""
