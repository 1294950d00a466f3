"""Tasks: loss and metrics. Each is a LightningModule."""
