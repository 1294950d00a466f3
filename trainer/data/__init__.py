"""Order of samples, their division over workers, and batches. Public face: datamodule.ImageData,
lightning_data.LoaderData."""
