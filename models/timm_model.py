"""Any network of timm, the PyTorch image models of Ross Wightman (https://github.com/huggingface/pytorch-image-models)."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class TimmModel(nn.Module):
    """A network of timm's collection, with the dataset's numbers of classes and input channels.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels. Networks with one image size need it as well, as `img_size`.
        name: of `timm.create_model`; `timm.list_models()` lists all.
        pretrained: must be false. Published weights come by the text model.pretrained=timm:NAME, which fetches them
            before the run starts: timm itself would download them in every worker.
        options: further arguments of `timm.create_model`, such as drop_rate or img_size.

    Raises:
        ValueError: timm is not installed, or pretrained is true.
    """

    fetching_arguments: ClassVar[Sequence[str]] = ("name",)
    """Arguments of which a value with a colon (hf-hub:USER/NAME) is fetched from elsewhere: another user's run may not.
    """

    def __init__(
        self, classes: int, image_shape: Sequence[int], name: str, pretrained: bool = False, **options: Any
    ) -> None:
        super().__init__()
        if pretrained:
            raise ValueError(f"pretrained=true would download in every worker: model.pretrained=timm:{name}.TAG")
        try:
            import timm  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            text = f"{name} of timm's collection needs timm ({error})"
            raise ValueError(f"{text}; pip install 'leyden[timm]' {_fitting_vision()}") from error
        except RuntimeError as error:  # "operator torchvision::nms does not exist"
            text = f"{name} of timm's collection needs a torchvision that was built for torch {torch.__version__}"
            raise ValueError(f"{text} ({error}); pip install --upgrade {_fitting_vision()}") from error
        self.network = timm.create_model(
            name, pretrained=False, num_classes=classes, in_chans=image_shape[0], **options
        )

    @staticmethod
    def public_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
        """By layout of a public file: its name for each of these names."""
        return {"timm": {name: name.removeprefix("network.") for name in names}}

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        return self.network(images)


def _fitting_vision() -> str:
    """Arguments by which pip takes the torchvision of the installed torch, which stays."""
    build = torch.__version__.partition("+")[2]
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"torchvision torch=={torch.__version__}{index}"
