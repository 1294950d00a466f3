"""Keyed randomness: layers whose draws are functions of (seed, epoch, sample, layer), whichever worker computes."""
