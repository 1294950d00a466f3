"""experiment=natural_images: whitening, spectra and Gabor fits equal their definitions; the basis next to FastICA's."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import SHARED_DATA
from PIL import Image

from leyden.datasets.patches.image_patches import ImagePatches
from leyden.models.reconstruction_ica import ReconstructionICA, centred
from leyden.trainer.diagnostics.inspection.basis_statistics import excess_kurtosis, spectra
from leyden.trainer.diagnostics.inspection.gabor import fit_gabors
from leyden.trainer.diagnostics.inspection.report.basis import BasisStatistics

PHOTOGRAPHS = SHARED_DATA / "imagenet-sample.zip"


def test_patches_are_those_of_their_files(tmp_path: Path) -> None:
    """Of files whose grey says their number: nine for training, the tenth for the test."""
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for number in range(10):
            stream = io.BytesIO()
            Image.new("RGB", (40, 32), (20 * number,) * 3).save(stream, format="PNG")
            archive.writestr(f"any/{number}.png", stream.getvalue())
    train, test = (ImagePatches(split, tmp_path / "photos.zip", size=8, per_image=3) for split in ("train", "test"))
    assert train.images.shape == (27, 1, 8, 8)
    assert train.images.amax((1, 2, 3)).tolist() == [20 * (number // 3) for number in range(27)]
    assert test.images.unique().tolist() == [180]
    again = ImagePatches("train", tmp_path / "photos.zip", size=8, per_image=3)
    assert torch.equal(train.images, again.images)
    with pytest.raises(ValueError, match="at least 60 pixels a side"):
        ImagePatches("train", tmp_path / "photos.zip", size=30)
    with pytest.raises(ValueError, match="no split 'val'"):
        ImagePatches("val", tmp_path / "photos.zip")


def test_a_patch_is_a_part_of_the_reduced_photograph(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24), dtype=np.uint8)
    for number in range(2):
        Image.fromarray(pixels).convert("RGB").save(tmp_path / f"{number}.png")
    patch = ImagePatches("train", tmp_path, size=5, per_image=1).images[0, 0].int()
    reduced = pixels.reshape(10, 2, 12, 2).mean((1, 3))
    far = [
        np.abs(reduced[row : row + 5, column : column + 5] - patch.numpy()).max()
        for row in range(6)
        for column in range(8)
    ]
    assert min(far) <= 0.51


def correlated(count: int = 3000) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.nn.functional.avg_pool2d(torch.randn(count, 1, 8, 8), 3, stride=1)


@torch.no_grad()
def test_whitened_components_are_uncorrelated_and_reconstruct() -> None:
    images = correlated()
    network = ReconstructionICA((1, 6, 6), side=5, kept=20)
    network.load_state_dict(network.weights_from_images(images), strict=False)
    z = network.whitened(images).double()
    assert torch.allclose(z.T @ z / len(z), torch.eye(20, dtype=torch.float64), atol=1e-4)
    flat = centred(images)
    best = torch.linalg.svd(flat, full_matrices=False).S
    lost = (network.stage.whitening.inverse @ network.whitened(images).T).T - flat
    assert float(lost.square().sum()) == pytest.approx(float(best[20:].square().sum()), rel=1e-3)
    rows = network.stage.unit_rows()
    assert torch.allclose(rows.norm(dim=1), torch.ones(25))
    code, sums = network.linear_responses(images), network(images, 0)
    assert torch.allclose(sums[:, 0], (code @ rows - z.float()).square().sum(1), rtol=1e-3)
    assert torch.allclose(sums[:, 2], z.float().square().sum(1), rtol=1e-4)
    grid = code.square().view(-1, 5, 5)
    around = torch.stack([grid[:, (1 + y) % 5, (4 + x) % 5] for y in (-1, 0, 1) for x in (-1, 0, 1)]).sum(0)
    assert torch.allclose(network(images).view(-1, 5, 5)[:, 1, 4], (0.01 + around).sqrt(), rtol=1e-4)
    made = network.reconstruction(images)
    assert torch.allclose(
        made, (code @ network.basis().flatten(1)).view_as(images) + images.mean((1, 2, 3), True), atol=1e-4
    )


def gabors(angles: torch.Tensor, frequency: float = 0.18) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(12.0) - 5.0, torch.arange(12.0) - 6.5, indexing="ij")
    turned = angles[:, None, None]
    u, v = x * turned.cos() + y * turned.sin(), y * turned.cos() - x * turned.sin()
    return torch.exp(-u.square() / 8 - v.square() / 12) * torch.cos(2 * torch.pi * frequency * u + 0.8)


def test_gabor_functions_are_found_and_noise_is_none() -> None:
    angles = torch.tensor([0.2, 1.0, 1.9, 2.8])
    found = fit_gabors(gabors(angles))
    assert float(found.residual.max()) < 0.02
    assert torch.allclose(found.orientation.float(), angles, atol=0.1)
    assert torch.allclose(found.frequency.float(), torch.tensor(0.18), atol=0.02)
    torch.manual_seed(0)
    assert float(fit_gabors(torch.randn(4, 12, 12)).residual.min()) > 0.5


def test_spectra_and_kurtosis() -> None:
    angles = torch.tensor([0.2, 1.0, 1.9, 2.8])
    found = spectra(gabors(angles))
    assert torch.allclose(found.orientation.float(), angles, atol=0.15)
    torch.manual_seed(0)
    noise = spectra(torch.randn(50, 12, 12))
    assert float(found.selectivity.min()) > 0.7 > 0.4 > float(noise.selectivity.median())
    samples = torch.randn(200_000, 1)
    assert float(excess_kurtosis(samples)) == pytest.approx(0.0, abs=0.05)
    laplace = samples.abs() * torch.randn(200_000, 1).sign() * torch.randn(200_000, 1).exp()
    assert float(excess_kurtosis(laplace)) > 3.0


@pytest.mark.campaign
def test_the_basis_of_photographs_is_oriented_and_sparse_as_fast_ica_has_it() -> None:
    """FastICA (Hyvarinen 1999) of the same whitened patches is the reference."""
    if not PHOTOGRAPHS.is_file():
        pytest.skip("no photographs here")
    from sklearn.decomposition import FastICA

    images = ImagePatches("train", PHOTOGRAPHS, per_image=20).images.float().div(255).sub(0.5).div(0.25)
    network = ReconstructionICA((1, 12, 12), side=8, kept=64)
    network.load_state_dict(network.weights_from_images(images), strict=False)
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    for _ in range(500):
        cost = network(images[torch.randint(len(images), (500,))], 0).mean(0) @ torch.tensor([1.0, 6.0, 0.0])
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = BasisStatistics(network, images)
        whitened = network.whitened(images)
    no_whitening: Any = False  # of images that are whitened; its annotation lacks it
    reference = FastICA(whiten=no_whitening, max_iter=20, tol=0.05, random_state=0).fit(whitened.double().numpy())
    responses = whitened.double() @ torch.from_numpy(reference.components_).T
    assert found.kurtosis > found.kurtosis_whitened + 1.0
    assert found.kurtosis > 0.75 * float(excess_kurtosis(responses).mean())
    assert found.selectivity > 1.5 * found.selectivity_random
    assert found.residual < 0.8 * found.residual_random
