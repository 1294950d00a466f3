"""Any network of timm, the PyTorch image models of Ross Wightman (https://github.com/huggingface/pytorch-image-models)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class TimmModel(nn.Module):
    """A network of timm's collection, with the dataset's numbers of classes and input channels.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels. Networks with one image size need it as well, as `img_size`.
        name: of `timm.create_model`; `timm.list_models()` lists all.
        pretrained: start from published weights, which timm downloads; the classifier is new if `classes` differs.
        options: further arguments of `timm.create_model`, such as drop_rate or img_size.

    Raises:
        ValueError: timm is not installed.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], name: str, pretrained: bool = False, **options: Any
    ) -> None:
        super().__init__()
        try:
            import timm  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            raise ValueError(f"{name} of timm's collection needs timm ({error}); pip install 'leyden[timm]'") from error
        self.network = timm.create_model(
            name, pretrained=pretrained, num_classes=classes, in_chans=image_shape[0], **options
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        return self.network(images)
