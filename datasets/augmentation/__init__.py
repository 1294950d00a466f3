"""Random changes of training images in two parts: crops chosen before decoding, the rest on batches on the device."""
