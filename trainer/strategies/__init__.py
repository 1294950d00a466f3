"""How training is split over workers: one Fabric Strategy a file."""
