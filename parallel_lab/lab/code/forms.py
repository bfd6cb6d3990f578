"""Every operator that a program may have, once: how MindSpore, PyTorch and JAX call it.

    FORMS["matmul"].mindspore(step)       ("MatMul(transpose_b=True)", "{0}, {1}")
    FORMS["matmul"].torch(["x", "w"], {"transpose_b": True})        "x @ w.T"

Words alongside it say what differs between the libraries. A function gets the names of the operands and the attributes,
and gives an expression; a new operator is a new line of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...base.errors import ArgumentError

Names, Attrs = Sequence[str], Mapping[str, Any]


class Form(NamedTuple):
    """How an operator is called.

    made     arguments that MindSpore's Primitive is made with, as (its name, attribute) pairs
    called   MindSpore's call of it, by the names of the operands
    torch, jax   expressions;  None: what the library has no form for, in `without`
    """

    torch: Callable[[Names, Attrs], str]
    jax: Callable[[Names, Attrs], str]
    made: Callable[[Attrs], str] = lambda a: ""
    called: Callable[[str, Names, Attrs], str] = lambda op, i, a: f"{op}({', '.join(i)})"
    mindspore: str = ""  # another class than ours is called


def _both(text: str) -> tuple[Callable[[Names, Attrs], str], Callable[[Names, Attrs], str]]:
    """The same infix expression in both libraries."""
    return (lambda i, a: text.format(*i),) * 2


def _of(torch: str, jax: str) -> tuple[Callable[[Names, Attrs], str], Callable[[Names, Attrs], str]]:
    return lambda i, a: torch.format(*i), lambda i, a: jax.format(*i)


def _product(i: Names, a: Attrs) -> str:
    left, right = i[0] + ".T" * a["transpose_a"], i[1] + ".T" * a["transpose_b"]
    return f"{left} @ {right}"


def _flags(*names: str) -> Callable[[Attrs], str]:
    """Arguments of the Primitive that are not as they are by default."""
    return lambda a: ", ".join(f"{n}={a[n]!r}" for n in names if a[n])


def _reduced(name: str) -> Form:
    def expression(axis: str, keep: str) -> Callable[[Names, Attrs], str]:
        def text(i: Names, a: Attrs) -> str:
            where = [] if a["axis"] in (None, ()) else [f"{axis}={a['axis']}"]
            return f"{i[0]}.{name}({', '.join([*where, *([f'{keep}=True'] if a['keep_dims'] else [])])})"

        return text

    def called(op: str, i: Names, a: Attrs) -> str:
        return f"{op}({i[0]})" if a["axis"] is None else f"{op}({i[0]}, {a['axis']})"

    return Form(expression("dim", "keepdim"), expression("axis", "keepdims"), _flags("keep_dims"), called)


def _sizes(shape: Sequence[int]) -> str:
    """A shape to reshape to: its first dim, which the batch has made, is left open."""
    return ", ".join(map(str, (-1, *shape[1:])))


def _norm(i: Names, a: Attrs) -> str:
    return f"F.layer_norm({i[0]}, {i[1]}.shape, {i[1]}, {i[2]}, {a['epsilon']!r})"


def _norm_jax(i: Names, a: Attrs) -> str:
    mean, square = f"{i[0]}.mean(-1, keepdims=True)", f"{i[0]}.var(-1, keepdims=True)"
    return f"({i[0]} - {mean}) / jnp.sqrt({square} + {a['epsilon']!r}) * {i[1]} + {i[2]}"


def _attention(i: Names, a: Attrs) -> str:
    return f"attention({', '.join(i)}, {a['is_causal']})"


def _attention_jax(i: Names, a: Attrs) -> str:
    return f"jax.nn.dot_product_attention({', '.join(i)}, is_causal={a['is_causal']})"


def _batch_norm_jax(i: Names, a: Attrs) -> str:
    x, axes = i[0], "(0, 2, 3), keepdims=True"
    scale, shift = (f"{name}[:, None, None]" for name in i[1:])
    return f"({x} - {x}.mean({axes})) / jnp.sqrt({x}.var({axes}) + {a['epsilon']!r}) * {scale} + {shift}"


def _convolution(i: Names, a: Attrs) -> str:
    return f"F.conv2d({i[0]}, {i[1]}, stride={a['stride']}, padding={a['pad']})"


def _convolution_jax(i: Names, a: Attrs) -> str:
    pads = f"[({a['pad']}, {a['pad']})] * 2"
    return f"jax.lax.conv_general_dilated({i[0]}, {i[1]}, ({a['stride']},) * 2, {pads})"


def _pool_jax(i: Names, a: Attrs) -> str:
    window, strides = ((1, 1, a[name], a[name]) for name in ("kernel_size", "strides"))
    return f'jax.lax.reduce_window({i[0]}, -jnp.inf, jax.lax.max, {window}, {strides}, "VALID")'


def _dense_pictures(a: Attrs) -> str:
    return f"{a['out_channel']}, {a['kernel_size']}, pad_mode={a['pad_mode']!r}, pad={a['pad']}, stride={a['stride']}"


def _routed(i: Names, a: Attrs) -> str:
    if (a["router"], a["scale"], a["groups"]) != ("softmax_topk_norm", 1.0, 1):
        what = f"the router {a['router']!r} with scale {a['scale']} and {a['groups']} groups"
        raise ArgumentError(what, where="code", allowed="softmax_topk_norm, scale 1, one group")
    return f"routed({i[0]}, {a['k']})"


def _experts(library: str) -> Callable[[Names, Attrs], str]:
    def text(i: Names, a: Attrs) -> str:
        inner = a["activation"]
        return f"experts({', '.join(i)}, lambda x: {getattr(FORMS[inner.op], library)(['x'], inner.attrs)})"

    return text


_APPROXIMATE = {"tanh": True, "none": False}

FORMS: dict[str, Form] = {
    "matmul": Form(_product, _product, _flags("transpose_a", "transpose_b")),
    "bias_add": Form(*_both("{0} + {1}")),
    "add": Form(*_both("{0} + {1}")),
    "sub": Form(*_both("{0} - {1}")),
    "mul": Form(*_both("{0} * {1}")),
    "square": Form(*_both("{0} * {0}")),
    "relu": Form(*_of("torch.relu({0})", "jax.nn.relu({0})")),
    "tanh": Form(*_of("torch.tanh({0})", "jnp.tanh({0})")),
    "gelu": Form(
        lambda i, a: f"F.gelu({i[0]}, approximate={a['approximate']!r})",
        lambda i, a: f"jax.nn.gelu({i[0]}, approximate={_APPROXIMATE[a['approximate']]})",
    ),
    "reduce_mean": _reduced("mean"),
    "reduce_sum": _reduced("sum"),
    "reshape": Form(
        lambda i, a: f"{i[0]}.reshape({_sizes(a['shape'])})",
        lambda i, a: f"{i[0]}.reshape({_sizes(a['shape'])})",
        called=lambda op, i, a: f"{op}({i[0]}, ({_sizes(a['shape'])}{',' * (len(a['shape']) == 1)}))",
    ),
    "expand_dims": Form(
        lambda i, a: f"{i[0]}.unsqueeze({a['axis']})",
        lambda i, a: f"jnp.expand_dims({i[0]}, {a['axis']})",
        called=lambda op, i, a: f"{op}({i[0]}, {a['axis']})",
    ),
    "flatten": Form(*_of("{0}.flatten(1)", "{0}.reshape(len({0}), -1)")),
    "gather": Form(
        *_of("F.embedding({1}.long(), {0})", "{0}[{1}]"), called=lambda op, i, a: f"{op}({i[0]}, {i[1]}, {a['axis']})"
    ),
    "layer_normalization": Form(
        _norm,
        _norm_jax,
        lambda a: f"{a['begin_norm_axis']}, {a['begin_params_axis']}, {a['epsilon']!r}",
        lambda op, i, a: f"{op}({', '.join(i)})[0]",
    ),
    "sparse_cross_entropy_fused": Form(
        *_of(
            'F.cross_entropy({0}, {1}.long(), reduction="none")',
            "-jnp.take_along_axis(jax.nn.log_softmax({0}), {1}[:, None], axis=1)[:, 0]",
        ),
        called=lambda op, i, a: f'ops.cross_entropy({i[0]}, {i[1]}, reduction="none")',
        mindspore="-",
    ),
    "scaled_dot_product_attention": Form(_attention, _attention_jax),
    "bce_with_logits_values": Form(
        *_of(
            'F.binary_cross_entropy_with_logits({0}, {1}, reduction="none")', "(1 - {1}) * {0} + jax.nn.softplus(-{0})"
        ),
        called=lambda op, i, a: (
            f"ops.binary_cross_entropy_with_logits({i[0]}, {i[1]}, "
            f'ops.ones_like({i[1]}), ops.ones_like({i[1]}), "none")'
        ),
        mindspore="-",
    ),
    "batch_norm": Form(
        lambda i, a: f"F.batch_norm({i[0]}, None, None, {i[1]}, {i[2]}, training=True, eps={a['epsilon']!r})",
        _batch_norm_jax,
        lambda a: f"is_training=True, epsilon={a['epsilon']!r}",
        lambda op, i, a: f"{op}({', '.join(i)}, {op}_mean, {op}_variance)[0]",
        "BatchNorm",
    ),
    "route_tokens": Form(_routed, _routed),
    "expert_scores": Form(*_of("{0}.softmax(-1)", "jax.nn.softmax({0})"), mindspore="Softmax"),
    "expert_load": Form(
        lambda i, a: f"load_of({i[0]})" + " / dist.get_world_size()" * a["local"],
        lambda i, a: f"({i[0]} > 0).sum((0, 1))",
    ),
    "experts": Form(_experts("torch"), _experts("jax")),
    "convolution": Form(_convolution, _convolution_jax, _dense_pictures),
    "max_pool": Form(
        lambda i, a: f"F.max_pool2d({i[0]}, {a['kernel_size']}, {a['strides']})",
        _pool_jax,
        lambda a: f"{a['kernel_size']}, {a['strides']}, {a['pad_mode']!r}",
    ),
}
