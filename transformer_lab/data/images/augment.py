"""Augmentation on the host, which depends only on the random seeds of an image or batch."""

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float32, Int64, UInt8
from PIL import Image, ImageEnhance, ImageOps

from transformer_lab.errors import LabError


@dataclass(frozen=True)
class AugmentConfig:
    """The steps applied to training images, in this order; 0 leaves a step out."""

    crop_padding: int = 0  # black pixels added on each side before a random crop to the old size
    flip: float = 0.0  # probability of mirroring left and right
    operations: int = 0  # operations of RandAugment on each image (Cubuk 2020)
    magnitude: float = 9.0  # strength of these operations, up to 10
    erase: float = 0.0  # probability of a rectangle of noise (Zhong 2020)
    mixup: float = 0.0  # alpha of Beta(alpha, alpha), each batch's weight (Zhang 2018)
    cutmix: float = 0.0  # the same (Yun 2019); with both, each batch takes one of the two

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            top = {"flip": 1, "erase": 1, "magnitude": 10}.get(field.name, np.inf)
            if not 0 <= value <= top:
                raise LabError(f"config.augment.{field.name} = {value} is not within 0 and {top}")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed, so that labels are distributions over classes."""
        return self.mixup > 0 or self.cutmix > 0


def augment(
    image: UInt8[np.ndarray, "*frames h w c"], draw: int, config: AugmentConfig
) -> UInt8[np.ndarray, "*frames h w c"]:
    """Crops, flips, applies RandAugment to, and randomly erases a part of one image, or of all
    frames of a clip alike."""
    if image.ndim == 4:
        return np.stack([augment(frame, draw, config) for frame in image])
    rng = np.random.default_rng(draw)
    if pad := config.crop_padding:
        height, width = image.shape[:2]
        top, left = rng.integers(2 * pad + 1, size=2)
        image = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        image = image[top : top + height, left : left + width]
    if config.flip and rng.random() < config.flip:
        image = image[:, ::-1]
    if config.operations:
        image = _rand_augment(image, rng, config)
    if config.erase and rng.random() < config.erase:
        image = _erase(image, rng)
    return image


def mix(
    images: UInt8[np.ndarray, "rows *frames h w c"],
    labels: Float32[np.ndarray, "rows classes"],
    draws: Int64[np.ndarray, "rows"],
    config: AugmentConfig,
) -> tuple[UInt8[np.ndarray, "rows *frames h w c"], Float32[np.ndarray, "rows classes"]]:
    """Mixup or CutMix of each row with another one; no row may be padding.

    The labels' shares are exactly those of the pixels."""
    rng = np.random.default_rng(draws)
    other = rng.permutation(len(images))
    if config.mixup and (not config.cutmix or rng.random() < 0.5):
        share = rng.beta(config.mixup, config.mixup)
        mixed = share * images.astype(np.float32) + (1 - share) * images[other]
        images = np.rint(mixed).astype(np.uint8)
    else:
        height, width = images.shape[-3:-1]
        part = (1 - rng.beta(config.cutmix, config.cutmix)) ** 0.5
        rows, columns = (_middle(rng, size, part * size) for size in (height, width))
        images = images.copy()
        images[..., rows, columns, :] = images[other][..., rows, columns, :]
        cut = (rows.stop - rows.start) * (columns.stop - columns.start)
        share = 1 - cut / (height * width)
    return images, (share * labels + (1 - share) * labels[other]).astype(np.float32)


def _middle(rng: np.random.Generator, size: int, length: float) -> slice:
    """A range of `length` pixels around a random middle, cut off at the edges."""
    middle = rng.integers(size)
    first, last = (round(middle + half * length) for half in (-0.5, 0.5))
    return slice(max(0, first), min(size, last))


def _erase(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Puts noise over 2 to 33 % of the image, between 0.3 and 1 / 0.3 times as high as wide."""
    height, width, channels = image.shape
    area = rng.uniform(0.02, 1 / 3) * height * width
    ratio = np.exp(rng.uniform(np.log(0.3), -np.log(0.3)))
    h = min(height, max(1, round((area * ratio) ** 0.5)))
    w = min(width, max(1, round((area / ratio) ** 0.5)))
    top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
    image = image.copy()
    image[top : top + h, left : left + w] = rng.integers(256, size=(h, w, channels), dtype=np.uint8)
    return image


def _affine(picture: Image.Image, *matrix) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix)


# Each takes a picture and a strength in -1..1, whose sign is random; the ranges
# are those of AutoAugment (Cubuk 2019, table 6).
OPERATIONS = {
    "identity": lambda p, s: p,
    "autocontrast": lambda p, s: ImageOps.autocontrast(p),
    "equalize": lambda p, s: ImageOps.equalize(p),
    "rotate": lambda p, s: p.rotate(30 * s),
    "solarize": lambda p, s: ImageOps.solarize(p, 256 - round(256 * abs(s))),
    "posterize": lambda p, s: ImageOps.posterize(p, 8 - round(4 * abs(s))),
    "color": lambda p, s: ImageEnhance.Color(p).enhance(1 + 0.9 * s),
    "contrast": lambda p, s: ImageEnhance.Contrast(p).enhance(1 + 0.9 * s),
    "brightness": lambda p, s: ImageEnhance.Brightness(p).enhance(1 + 0.9 * s),
    "sharpness": lambda p, s: ImageEnhance.Sharpness(p).enhance(1 + 0.9 * s),
    "shear_x": lambda p, s: _affine(p, 1, 0.3 * s, 0, 0, 1, 0),
    "shear_y": lambda p, s: _affine(p, 1, 0, 0, 0.3 * s, 1, 0),
    "translate_x": lambda p, s: _affine(p, 1, 0, 0.45 * s * p.width, 0, 1, 0),
    "translate_y": lambda p, s: _affine(p, 1, 0, 0, 0, 1, 0.45 * s * p.height),
}


def _rand_augment(image, rng: np.random.Generator, config: AugmentConfig) -> np.ndarray:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    names = list(OPERATIONS)
    for choice, sign in zip(
        rng.integers(len(names), size=config.operations),
        rng.choice([-1, 1], size=config.operations),
        strict=True,
    ):
        picture = OPERATIONS[names[choice]](picture, sign * config.magnitude / 10)
    return np.asarray(picture).reshape(image.shape)
