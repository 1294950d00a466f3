"""Schedulers: which model trains next on which worker."""
