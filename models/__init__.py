"""Networks, written for one device: plain `nn.Module`s that know no trainer and no dataset."""
