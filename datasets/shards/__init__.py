"""Shards: tars in WebDataset's form, or raw pixels, with an index by which every image is one read away."""
