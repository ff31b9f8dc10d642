"""Mutants of the views."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

SPECS = (
    Mutant("batch.pixels, batch.image_sizes().repeat(views, 1)", "batch.pixels, batch.image_sizes().repeat_interleave(views, 0)"),
    Mutant("return rendered.view(views, len(pixels), *rendered.shape[1:])", "return rendered.view(len(pixels), views, *rendered.shape[1:]).transpose(0, 1)"),
    Mutant("replace(self, size=self.local.size, scale=self.local.scale, local=None)", "replace(self, size=self.local.size, local=None)"),
    Mutant("return small(batch, mean, std, generator, self.local.count, **options)", "return small(batch, mean, std, None, self.local.count, **options)"),
    Mutant("if self.solarize not in ZERO_PROBABILITY:", "if True:"),
    Mutant("row < probability[view % 2]", "row < probability[0]"),
    Mutant("            return uniform < probability\n", "            return uniform <= 1 - probability\n"),
    Mutant("1 + s * (2 * uniform - 1), torch.ones_like", "1 + s * uniform, torch.ones_like"),
    Mutant("1 + s * (2 * uniform - 1), torch.ones_like(uniform)", "1 + s * (2 * uniform - 1), torch.zeros_like(uniform)"),
    Mutant("zip((self.brightness, self.contrast, self.saturation)", "zip((self.contrast, self.brightness, self.saturation)"),
    Mutant("zip((self.brightness, self.contrast, self.saturation)", "zip((self.brightness, self.contrast, self.contrast)"),
    Mutant("self.hue * (2 * uniforms[\"hue\"] - 1) * jittered", "self.hue * (2 * uniforms[\"hue\"] - 1)"),
    Mutant("self.hue * (2 * uniforms[\"hue\"] - 1) * jittered", "self.hue * uniforms[\"hue\"] * jittered"),
    Mutant('order=uniforms["order"].argsort(1)', 'order=uniforms["order"].argsort(1).sort(1).values'),
    Mutant('grey=happens(self.grey, uniforms["grey"])', 'grey=happens(self.grey, uniforms["flip"])'),
    Mutant("(low + (high - low) * uniforms[\"sigma\"])", "high * uniforms[\"sigma\"]"),
    Mutant('happens(self.blur, uniforms["blur"]) *', 'happens(self.blur, uniforms["sigma"]) *'),
    Mutant('happens(self.solarize, uniforms["solarize"])', 'happens(self.blur, uniforms["solarize"])'),
    Mutant("rank >= round(self.share * width)", "rank > round(self.share * width)"),
    Mutant("rank >= round(self.share * width)", "rank < round(self.share * width)"),
    Mutant("torch.rand(views, row_range.total, width, generator=generator", "torch.rand(1, row_range.total, width, generator=generator"),
    # --- the box of a crop
    Mutant("(scale[0] + (scale[1] - scale[0]) * draws[0])", "scale[1] * draws[0]"),
    Mutant("low, high = math.log(ratio[0]), math.log(ratio[1])\n    aspect = (low + (high - low) * draws[1]).exp()", "low, high = ratio\n    aspect = low + (high - low) * draws[1]"),
    Mutant("w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()", "w, h = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()"),
    Mutant("fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)", "fits = (w > 0) & (w < width) & (h > 0) & (h < height)"),
    Mutant("fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)", "fits = (w > 0) & (w <= width) & (h > 0)"),
    Mutant("(height - h + 1)).floor()", "(height - h)).floor()"),
    Mutant("(height - h + 1)).floor()", "(height - h + 1)).ceil()"),
    Mutant("left = (draws[3].gather", "left = (draws[2].gather"),
    Mutant("(height * ratio[1]).round()", "(height * ratio[0]).round()"),
    Mutant("((width - w0) / 2).floor()", "((width - w0) / 2).ceil()"),
    Mutant("torch.where(fits.any(1, keepdim=True), boxes, fallback)", "boxes"),
    Mutant("operator.gt(*getattr(", "operator.ge(*getattr("),
    # --- rows of a batch
    Mutant("n = n if row_range is None else row_range.total * views", "n = n"),
    Mutant("int(name == \"box\")", "0"),
    Mutant("row_range.select(uniforms, 1).argsort(-1)", "uniforms[:, : len(vectors)].argsort(-1)"),
)

AUGMENT = (
    Mutant("image_index = torch.arange(len(box), device=box.device) % len(images)", "image_index = torch.arange(len(box), device=box.device) // (len(box) // len(images))"),
    Mutant("columns = resize_taps(box[:, 1], box[:, 3], width, size, ", "columns = resize_taps(box[:, 1], box[:, 2], width, size, "),
    Mutant("torch.where(flip[:, None, None], tap.flip(1), tap)", "torch.where(flip[:, None, None], tap, tap.flip(1))"),
    Mutant("torch.where(flip[:, None, None], tap.flip(1), tap)", "torch.where(flip[:, None, None], tap.flip(2), tap)"),
    Mutant("reach = scale.clamp(min=1)", "reach = torch.ones_like(scale)"),
    Mutant(".double()[:, None] + 0.5) * scale", ".double()[:, None]) * scale"),
    Mutant("first = (centre - reach + 0.5).floor()", "first = (centre - reach + 0.5).ceil() - 1", equal="where the two differ, the first pixel is a whole reach from the centre and has no weight"),
    Mutant("first = (centre - reach + 0.5).floor()", "first = (centre - reach + 1.5).floor()"),
    Mutant("torch.arange(math.ceil(2 * max(1.0, pixels / size))", "torch.arange(math.ceil(max(1.0, pixels / size))"),
    Mutant("weight / total)", "weight)"),
    Mutant("(1 - (middle - centre).abs() / reach).clamp(min=0)", "(1 - (middle - centre).abs() / reach)"),
    Mutant("return weight * ((middle > first_pixel) & (middle < first_pixel + extent))", "return weight"),
    Mutant("LUMA_WEIGHTS = (0.2989, 0.587, 0.114)", "LUMA_WEIGHTS = (0.114, 0.587, 0.2989)"),
    Mutant("LUMA_WEIGHTS = (0.2989, 0.587, 0.114)", "LUMA_WEIGHTS = (0.2126, 0.7152, 0.0722)"),
    Mutant("before = order < order[:, 1:2]", "before = order > order[:, 1:2]"),
    Mutant("luma(images).mean((-1, -2), keepdim=True), factors[:, 1])", "images.mean((-1, -2), keepdim=True), factors[:, 1])"),
    Mutant("luma(images).mean((-1, -2), keepdim=True), factors[:, 1])", "luma(images).mean((-1, -2), keepdim=True), factors[:, 2])"),
    Mutant("return _jitter_pixels(images, factors, hue, order, ~before)", "return _jitter_pixels(images, factors, hue, order, before)"),
    Mutant("brightness_first = order[:, 0] < order[:, 2]", "brightness_first = order[:, 0] > order[:, 2]"),
    Mutant("((position > order[:, 3]) == after_hue)", "((position < order[:, 3]) == after_hue)"),
    Mutant("luma(images) * ~is_brightness[:, None, None, None]", "luma(images) * is_brightness[:, None, None, None]"),
    Mutant("torch.addcmul(base * (1 - factor), images, factor).clamp(0, 1)", "torch.addcmul(base * (1 - factor), images, factor)"),
    Mutant("from_green = (blue - red).mul_(inverse_chroma).add_(2)", "from_green = (red - blue).mul_(inverse_chroma).add_(2)"),
    Mutant(".mul_(inverse_chroma).add_(4)", ".mul_(inverse_chroma).add_(3)"),
    Mutant("(turns + 1).to(images.dtype)", "(1 - turns).to(images.dtype)"),
    Mutant("for peak in (3, 2, 4))", "for peak in (3, 4, 2))"),
    Mutant("if step == 2 and colour:", "if step == 2:"),
    Mutant("mean.mul_(1 - factor)).clamp_(0, 1)", "mean.mul_(1 - factor))"),
    Mutant("images.mul_(factor).clamp_(0, 1)", "images.mul_(factor)"),
    # --- blur, solarise, normalise
    Mutant("return max(3, 2 * round(size / 20) + 1)", "return max(3, 2 * round(size / 10) + 1)"),
    Mutant("return max(3, 2 * round(size / 20) + 1)", "return 2 * round(size / 20) + 1"),
    Mutant("half = min(kernel // 2, pixels - 1)", "half = kernel // 2"),
    Mutant("(-0.5 * (offset / sigma", "(-1.0 * (offset / sigma"),
    Mutant("return (pixels - 1) - ((pixels - 1) - source).abs(), weight", "return source.clamp(max=pixels - 1), weight"),
    Mutant("weight / weight.sum(1, keepdim=True)", "weight"),
    Mutant("blur_taps(sigma.repeat_interleave(channels), height, kernel)", "blur_taps(sigma.repeat(channels), height, kernel)"),
    Mutant("inverted = (images >= threshold).to", "inverted = (images > threshold).to"),
    Mutant("inverted = (images >= threshold).to", "inverted = (images <= threshold).to"),
    Mutant("result[:, channel].sub_(centre).div_(scale)", "result[:, channel].div_(scale).sub_(centre)"),
    Mutant("values[channel if len(values) > 1 else 0]", "values[0]"),
)

CHUNKS = (
    Mutant("    rows.weight.div_(255)\n", "    rows.weight.div_(256)\n"),
    Mutant("row_order[chunk] % len(pixels)).float()", "row_order[chunk] // 2).float()"),
    Mutant("draws.grey[chunk], lambda grey", "~draws.grey[chunk], lambda grey"),
    Mutant("_copy_rows(normalized(images, mean, std), views, row_order[chunk])", "_copy_rows(normalized(images, mean, std), views, torch.arange(len(views))[chunk])"),
    Mutant("jittered = ((draws.factors != 1).any(1) | (draws.hue != 0)).tolist()", "jittered = (draws.hue != 0).tolist()"),
    Mutant("jittered = ((draws.factors != 1).any(1) | (draws.hue != 0)).tolist()", "jittered = (draws.factors != 1).any(1).tolist()"),
    Mutant("zip(draws.order.argsort(1).tolist(), jittered", "zip(draws.order.tolist(), jittered"),
    Mutant("for width in halves[halves[0] == 0 :]:", "for width in halves[1:]:"),
    Mutant("GAUSSIAN_REACH = 5.7", "GAUSSIAN_REACH = 2.0"),
)

EVALUATION = (
    Mutant('round(size * 8 / 7) if view == "margin" else size', 'round(size * 7 / 8) if view == "margin" else size'),
    Mutant('round(size * 8 / 7) if view == "margin" else size', "round(size * 8 / 7)"),
    Mutant("if batch.pixels.ndim == 2:\n        return batch.pixels", "if batch.pixels.ndim == 2:\n        return batch.pixels / 255"),
    Mutant('if view == "margin" else _whole', 'if view == "whole" else _whole'),
    Mutant("normalized(squares / 255, mean, std)", "normalized(squares, mean, std)"),
    Mutant("corner = ((sizes - side) / 2).round()", "corner = ((sizes - side) / 2).floor()"),
    Mutant("short_side = sizes.amin(1, keepdim=True)", "short_side = sizes.amax(1, keepdim=True)"),
    Mutant("short_side > size, (short", "short_side >= size, (short"),
    Mutant("(short_side * (7 / 8)).round(), short", "(short_side * (7 / 8)).floor(), short"),
    Mutant("((resized - size) / 2).round() * scale", "((resized - size) / 2) * scale"),
    Mutant("bounds=torch.where(is_larger, whole, boxes)", "bounds=boxes"),
    Mutant("size * side // min(height, width) for", "round(size * side / min(height, width)) for"),
    Mutant('mode="bicubic", antialias=True).round()', 'mode="bilinear", antialias=True).round()'),
    Mutant(".round().clamp(0, 255)", ".round()"),
    Mutant("image[None, :, :height, :width]", "image[None]"),
)

PRODUCTS = (
    Mutant("if crops.blur not in ZERO_PROBABILITY:", "if crops.blur in ZERO_PROBABILITY:"),
    Mutant("images.transpose(1, 2).float() / 255\n", "images.transpose(1, 2).float() / 256\n"),
    Mutant("return rows.view(outer, -1, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)", "return rows"),
    Mutant("torch.where(draws.grey[:, None, None, None], luma(images), images)", "images"),
    Mutant("torch.where(draws.solarize[:, None, None, None], inverted, images)", "inverted"),
    Mutant("size - 1 - position, position)", "size - position, position)"),
    Mutant("start + (position + 0.5) * scale", "start + position * scale"),
    Mutant("return weight / weight.sum(-1, keepdim=True)", "return weight"),
    Mutant("down = across if height == width else", "down = across if True else"),
    Mutant("position > 0, position_sum, out_of_reach", "position >= 0, position_sum, out_of_reach"),
    Mutant("position < pixels - 1, 2 * (pixels - 1)", "position < pixels - 1, 2 * pixels"),
    Mutant("return direct + upper + lower", "return direct + upper"),
)

FAST = "not graph and not host and not threads and not photograph"
GROUPS = (
    Group(
        "data/views/specs.py",
        (
            "tests/data/test_views.py", "tests/data/test_augment.py",
            "-k", f"{FAST} and not jitter_is and not blur and not hue_is and not any_box and not crop_is and not trillionth and not routes",
        ),
        SPECS,
    ),
    Group("data/views/augment.py", ("tests/data/test_augment.py", "tests/data/test_views.py", "-k", f"{FAST} and not boxes and not sampler"), AUGMENT),
    Group("data/views/augment.py", ("tests/data/test_augment.py", "tests/data/test_views.py", "-k", f"{FAST} and not boxes and not sampler"), CHUNKS),
    Group("data/views/render.py", ("tests/data/test_evaluation_view.py", "tests/probes/test_features.py", "tests/data/test_views.py", "-k", "evaluat or test_features.py"), EVALUATION),
    Group("data/views/render.py", ("tests/data/test_products.py", "tests/data/test_augment.py", "tests/data/test_views.py", "-k", f"{FAST} and (test_products or products or drawn_parameters)"), PRODUCTS),
)
