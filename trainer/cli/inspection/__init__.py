"""`leyden inspect`: of a run, of augmented images, of a dataset."""
