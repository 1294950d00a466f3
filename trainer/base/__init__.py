"""Errors, log, atomic files, paths, signals, heartbeat, random numbers. Imports no other room."""
