"""Inspection of a trained network: filters, deconvolution, occlusion, class activation maps; no files, no pictures."""
