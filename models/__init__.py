"""Networks, written for one device: plain `nn.Module`s, independent of trainer and datasets."""
