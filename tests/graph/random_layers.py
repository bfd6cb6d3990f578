"""Random operators, third family: convolution, pooling, normalisation, attention, dropout, and the losses."""

from __future__ import annotations

import numpy as np

from parallel_lab import Tensor
from tests.graph.random_drawer import MANY, CheckedDrawer, distinct, varied
from tests.graph.random_nets import TRAINING_STEP


class LayerKinds(CheckedDrawer):
    """Each method appends an operator or a few that belong together, or none if the values at hand do not allow it."""

    def picture(self):
        x, array = self.with_dims(4)
        return (x, array) if array.size <= MANY else (None, array)

    # ---- windows ----

    def windows(self, size, dilation=(1, 1)):
        """kernel, stride, pad_mode and pads that fit a picture of this size."""
        mode = self.pick(("valid", "same", "pad"))
        stride = (self.pick((1, 2)), self.pick((1, 2)))
        pads = (0, 0, 0, 0)
        sides = zip(size, dilation, strict=True)
        kernel = tuple(self.pick([k for k in (1, 2, 3) if d * (k - 1) + 1 <= n]) for n, d in sides)
        if mode == "pad":
            pads = tuple(self.choices.below(min(2, kernel[i // 2])) for i in range(4))
        return kernel, stride, mode, pads

    def convolution(self):
        x, array = self.picture()
        if x is None:
            return
        channels = array.shape[1]
        dilation = (self.pick((1, 1, 2)), 1)
        kernel, stride, mode, pads = self.windows(array.shape[2:], dilation)
        group = self.pick([g for g in (1, 1, 2, channels) if channels % g == 0])
        out = group * self.pick((1, 2, 4))
        weight = self.parameter((out, channels // group, *kernel))
        attrs = {"stride": stride, "dilation": dilation, "pad_mode": mode, "group": group}
        attrs |= {"pad": pads} if mode == "pad" else {}
        y = self.add("Conv2D", x, weight, attrs=attrs)
        if self.chance(0.4):
            self.add("BiasAdd", y, self.parameter((out,)))

    def pooling(self):
        x, array = self.picture()
        if x is None:
            return
        if self.chance(0.3):
            sizes = tuple(None if self.chance(0.2) else 1 + self.choices.below(n) for n in array.shape[2:])
            name = "AdaptiveMaxPool2D" if distinct(array) and self.chance(0.5) else "AdaptiveAvgPool2D"
            self.add(name, x, attrs={"output_size": sizes})
            return
        kernel, stride, mode, pads = self.windows(array.shape[2:])
        attrs = {"kernel_size": kernel, "strides": stride, "pad_mode": mode, **({"pad": pads} if mode == "pad" else {})}
        if distinct(array) and self.chance(0.5):
            self.add("MaxPool", x, attrs=attrs)
        else:
            self.add("AvgPool", x, attrs={**attrs, "count_include_pad": self.chance(0.5)})

    # ---- normalisation ----

    def batch_norm(self):
        x, array = self.with_dims(2)
        over, c = (0, *range(2, array.ndim)), array.shape[1:2]
        training = varied(array, over) and self.chance(0.7)
        scale, bias = self.fresh(c, 0.5, 1.5), self.fresh(c)
        mean, variance = self.fresh(c, trained=training and self.chance(0.2)), self.fresh(c, 0.5, 1.5, trained=False)
        self.running |= {id(mean), id(variance)}
        attrs = {"is_training": training, "unbiased": self.chance(0.5), "momentum": self.pick((0.1, 0.9))}
        self.add("BatchNorm", x, scale, bias, mean, variance, attrs=attrs, only=self.pick((0, 0, None)))

    def layer_norm(self):
        x, array = self.with_dims(1)
        axis = self.choices.below(array.ndim)
        start = self.pick(range(axis, array.ndim))
        if varied(array, tuple(range(axis, array.ndim))):
            attrs = {"begin_norm_axis": axis, "begin_params_axis": start, "epsilon": 1e-5}
            shape = array.shape[start:]
            scale, bias = self.fresh(shape, 0.5, 1.5), self.fresh(shape)
            self.add("LayerNorm", x, scale, bias, attrs=attrs, only=self.pick((0, 0, None)))

    def rms_norm(self):
        x, array = self.with_dims(1)
        shape = array.shape[self.choices.below(array.ndim) :]
        if np.sqrt(np.square(array).mean(axis=tuple(range(array.ndim - len(shape), array.ndim)))).min() > 0.05:
            self.add("RmsNorm", x, self.fresh(shape, 0.5, 1.5), only=self.pick((0, 0, None)))

    def group_norm(self):
        x, array = self.with_dims(2)
        groups = self.pick([g for g in (1, 2, 4) if array.shape[1] % g == 0])
        if varied(array.reshape(len(array), groups, -1), (2,)):
            c = array.shape[1:2]
            self.add("GroupNorm", x, self.fresh(c, 0.5, 1.5), self.fresh(c), attrs={"num_groups": groups})

    def dropout(self):
        x, array = self.some()
        if array.ndim:
            dims = self.pick((None, None, 1 + self.choices.below(array.ndim)))
            attrs = {"p": self.pick((0.2, 0.5)), "key": self.choices.below(1 << 16), "dims": dims}
            self.add("Dropout", x, TRAINING_STEP, attrs=attrs)

    # ---- attention ----

    def attention(self):
        q, array = self.picture()
        if q is None or array.size > MANY // 2:
            return
        layout = self.pick(("BNSD", "BSND"))
        heads, rows = (1, 2) if layout == "BNSD" else (2, 1)
        s, t = array.shape[rows], self.pick((2, 4, array.shape[rows]))
        full = list(array.shape)
        full[rows] = t
        k = q if t == s and self.chance(0.3) else self.parameter(tuple(full))
        full[3] = self.pick((2, 4, full[3]))
        v = k if full[3] == array.shape[3] and self.chance(0.3) else self.parameter(tuple(full))
        attrs = {"is_causal": self.chance(0.4), **({"scale": 0.3} if self.chance(0.3) else {})}
        kind = self.choices.below(3)
        if kind == 2 and layout == "BNSD":
            self.add("AttentionExpand", q, k, v, attrs=attrs)
        elif kind == 1:
            shape = self.pick(((s, t), (array.shape[0], 1, 1, t), (array.shape[0], array.shape[heads], s, t)))
            mask = Tensor(self.choices.floats(-1, 1, shape)) if self.chance(0.4) else self.parameter(shape)
            self.add("ScaledDotProductAttentionWithMask", q, k, v, mask, attrs={**attrs, "input_layout": layout})
        else:
            self.add("ScaledDotProductAttention", q, k, v, attrs={**attrs, "input_layout": layout})

    def causal_weights(self):
        x, _ = self.with_dims(2)
        scores = self.add("CausalMask", x)
        self.bits.add(scores.number)  # -1e30 is of use to a softmax only
        self.add(self.pick(("Softmax", "SoftmaxExpand")), scores, attrs={"axis": -1})

    # ---- losses: one number from a value ----

    def loss(self, x):
        """One number that depends on every element of x differently."""
        array = self.array(x)
        kinds = [self.weighted, self.weighted, self.elementwise_loss]
        if array.ndim == 2 or array.ndim > 2 and self.chance(0.5):
            kinds += [self.class_loss, self.class_loss]
        return self.pick(kinds)(x, array)

    def weighted(self, x, array):
        product = self.add("Mul", x, self.fresh(array.shape, 0.5, 1.5))
        return self.add(self.pick(("ReduceSum", "ReduceMean")), product)

    def elementwise_loss(self, x, array):
        shape = array.shape
        kind = self.choices.below(3)
        # a program needs something to train
        labels = self.fresh(shape, 0.1, 0.9, trained=kind == 0 or self.chance(0.5))
        weight, each = self.fresh(shape[self.choices.below(len(shape) + 1) :], 0.5, 1.5), {"reduction": "none"}
        if kind == 0:
            values = self.add("SmoothL1Loss", x, labels, attrs={"beta": self.pick((0.5, 1.0))})
        elif kind == 1:
            values = self.add("BCEWithLogitsLoss", x, labels, weight, self.fresh(shape[-1:], 0.5, 1.5), of_class=each)
        else:
            values = self.add("BinaryCrossEntropy", self.add("Sigmoid", x), labels, weight, of_class=each)
        return self.add(self.pick(("ReduceSum", "ReduceMean")), values)

    def class_loss(self, x, array):
        classes, places = array.shape[1], (array.shape[0], *array.shape[2:])
        kind = self.choices.below(4 if array.ndim == 2 else 2)
        if kind == 2:
            losses = self.add("SoftmaxCrossEntropyWithLogits", x, self.fresh(array.shape, 0.1, 1.0), only=0)
            return self.add("ReduceMean", losses)
        labels = self.numbers(classes, places)
        if kind == 3:
            x = self.add("BiasAdd", x, self.fresh((classes,)))
            return self.add("SparseSoftmaxCrossEntropyWithLogits", x, labels)
        left_out = self.pick((None, 1))
        if left_out is not None and np.all(self.array(labels) == left_out):
            left_out = None  # a mean over nothing is NaN
        weight, attrs = self.fresh((classes,), 0.5, 1.5), {"ignore_index": left_out}
        if kind == 1:
            logs, each = self.add("LogSoftmax", x, attrs={"axis": 1}), {**attrs, "reduction": "none"}
            losses = self.add("NLLLoss", logs, labels, weight, attrs=each, only=0)
        else:
            smoothed = {**attrs, "label_smoothing": self.pick((0.0, 0.1))}
            losses = self.add("ClassCrossEntropy", x, labels, weight, attrs=smoothed)
        if self.chance(0.4):
            return self.add("ReduceSum", losses)
        weights = self.add("LabelWeight", labels, weight, attrs=attrs)
        return self.add("Div", self.add("ReduceSum", losses), self.add("ReduceSum", weights))
