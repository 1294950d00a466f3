"""The curve of a range test: losses by learning rate, smoothed; the steepest descent; a picture."""

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_UNCERTAIN = 0.1
"""Part of the steps at the beginning, in which an average is one of few values."""


class LRCurve:
    """Losses at growing learning rates.

    Args:
        smoothing: weight of the past in the moving averages.
    """

    def __init__(self, smoothing: float):
        self.smoothing = smoothing
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.diverged_at: float | None = None
        self._averages: list[float] = []
        self._sum = 0.0

    def add(self, rate: float, loss: float) -> float:
        """Append a loss. Returns the moving average, without the bias towards 0 of its beginning."""
        self.rates.append(rate)
        self.losses.append(loss)
        self._sum = self.smoothing * self._sum + (1 - self.smoothing) * loss
        self._averages.append(self._sum / (1 - self.smoothing ** len(self.losses)))
        return self._averages[-1]

    def has_diverged(self, times: float, first: int) -> bool:
        """Whether the average is `times` its first value above its least one, after `first` losses."""
        least = min(self._averages, default=0.0)
        return len(self._averages) > first and self._averages[-1] > least + times * abs(self._averages[0])

    def smooth_losses(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Losses averaged forward, then backward: a single average would show each change at a higher rate."""
        forward = np.array(self._averages)
        backward, total = np.empty_like(forward), 0.0
        for count, place in enumerate(reversed(range(len(forward))), 1):
            total = self.smoothing * total + (1 - self.smoothing) * forward[place]
            backward[place] = total / (1 - self.smoothing**count)
        return backward

    def lowest(self) -> float:
        """The learning rate at which the smoothed loss is lowest; NaN without losses."""
        return self.rates[int(self.smooth_losses().argmin())] if self.rates else math.nan

    def suggestion(self) -> float | None:
        """The learning rate at which the smoothed loss falls fastest, by the logarithm of the rate, before it is
        lowest; None where it does not fall."""
        values = self.smooth_losses()
        first, last = math.ceil(_UNCERTAIN * len(values)), int(values.argmin()) if len(values) else 0
        if last - first < 2:
            return None
        slopes = np.gradient(values, np.log(self.rates))[first:last]
        place = int(slopes.argmin())
        return self.rates[first + place] if slopes[place] < 0 else None

    def picture(self, name: str, suggested: float | None) -> Image.Image:
        """The losses (grey) and the smoothed ones (blue) by the rate, with the suggestion as a line."""
        width, height, left, bottom, top = 760, 460, 80, 50, 34
        picture = Image.new("RGB", (width, height), "white")
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
        if not self.rates:
            return picture
        smoothed = self.smooth_losses()
        low, high = float(smoothed.min()), float(max(smoothed[0], min(smoothed.max(), 2 * smoothed[0])))
        margin = 0.08 * (high - low) or 1.0
        low, high = low - margin, high + margin
        begin, end = math.log10(self.rates[0]), math.log10(self.rates[-1])

        def at(rate: float, loss: float) -> tuple[float, float]:
            across = (math.log10(rate) - begin) / ((end - begin) or 1.0)
            return (left + across * (width - left - 20),
                    top + min(1.0, max(0.0, (high - loss) / (high - low))) * (height - top - bottom))  # fmt: skip

        for decade in range(math.ceil(begin), math.floor(end) + 1):
            x = at(10.0**decade, low)[0]
            draw.line((x, top, x, height - bottom), fill=(225, 225, 225))
            draw.text((x - 14, height - bottom + 6), f"1e{decade}", fill="black", font=font)
        for part in range(5):
            loss = low + part / 4 * (high - low)
            y = at(self.rates[0], loss)[1]
            draw.line((left, y, width - 20, y), fill=(225, 225, 225))
            draw.text((6, y - 8), f"{loss:.4g}", fill="black", font=font)
        draw.line([at(*point) for point in zip(self.rates, self.losses, strict=True)], fill=(190, 190, 190))
        draw.line([at(*point) for point in zip(self.rates, smoothed, strict=True)], fill=(40, 90, 190), width=3)
        title = name
        if suggested is not None:
            x = at(suggested, low)[0]
            draw.line((x, top, x, height - bottom), fill=(200, 60, 40), width=2)
            title += f", falls fastest at {suggested:.3g}"
        draw.text((left, 10), title, fill="black", font=font)
        draw.text((width // 2, height - 22), "learning rate", fill="black", font=font)
        return picture
