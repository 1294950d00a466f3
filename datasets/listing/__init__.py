"""Which files of a place are samples: folders of classes, splits, and what is left out."""
