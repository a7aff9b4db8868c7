"""The twin itself, compared with torchvision's operations on tensors."""

import numpy as np
import pytest

from tests.oracles import pictures as reference


@pytest.fixture(scope="module")
def functional():
    from tests.frameworks.vision import torchvision

    return torchvision.transforms.functional


@pytest.mark.frameworks("torch", "torchvision")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("numbers", [(0.3, 1, 1, 0), (1, 1.7, 1, 0), (1, 1, 2.5, 0), (1, 1, 1, -0.3), (1, 1, 1, 0.45)])
def test_colors_change_as_in_torchvision(functional, numbers, channels):
    import torch

    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, channels)).astype(np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    changes = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    neutral = (1, 1, 1, 0)
    (k,) = (k for k in range(4) if numbers[k] != neutral[k])
    expected = getattr(functional, changes[k])(tensor, numbers[k]).permute(1, 2, 0).numpy()
    found = reference.jitter(pixels, *numbers, 0)
    assert abs(found.astype(int) - expected).max() <= 1


def test_the_order_of_color_changes_is_lexicographic():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3)).astype(np.uint8)
    bright = reference.jitter(pixels, 1.8, 1, 1, 0, 0)
    both = reference.jitter(bright, 1, 0.4, 1, 0, 0)
    assert (reference.jitter(pixels, 1.8, 0.4, 1, 0, 0) == both).all()  # brightness, contrast, saturation, hue
    assert (reference.jitter(pixels, 1.8, 0.4, 1, 0, 23) != both).any()  # the other way round
