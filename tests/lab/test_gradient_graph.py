"""The autograd graph of a step: what stands in it is the program, and its numbers are those of the chain rule."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.lessons import gradients
from parallel_lab.lab.lessons.quickstart import QuickNet
from parallel_lab.lab.pictures.gradient_graph import gradient_graph
from parallel_lab.lab.pictures.numbers import simulated_step


@pytest.fixture(scope="module")
def one():
    """(batch, net, plan, graph) of one device."""
    batch, net = pl.dataset.seed_batch(), QuickNet(in_dim=32, hidden_dim=16, out_dim=16)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    plan = pl.compile(net, *batch, loss=nn.MSELoss(), optimizer=optimizer)
    return batch, net, plan, gradient_graph(plan, 0, simulated_step(plan, net, optimizer, batch))


def size(array) -> float:
    return float(np.sqrt((np.asarray(array, np.float64) ** 2).mean()))


def test_the_sizes_are_those_of_the_chain_rule(one):
    """mean((relu(x w) w2 - label)^2), by hand."""
    (x, label), net, _, graph = one
    x, label, w, w2 = (np.asarray(a, np.float64) for a in (x, label, net.weight.asnumpy(), net.weight2.asnumpy()))
    product = x @ w
    relu = np.maximum(product, 0)
    d_out = 2 * (relu @ w2 - label) / label.size
    d_product = (d_out @ w2.T) * (product > 0)
    found = {n.of or n.makes: n.size for n in graph.nodes}
    assert found["x"] == pytest.approx(size(x)) and found["loss_fn.reduce_mean"] == pytest.approx(
        ((relu @ w2 - label) ** 2).mean(), rel=1e-5
    )
    assert found["w2"] == pytest.approx(size(relu.T @ d_out), rel=1e-5)  # gradients come last under their names
    assert found["w"] == pytest.approx(size(x.T @ d_product), rel=1e-5)
    assert found["relu"] == pytest.approx(size(d_out @ w2.T), rel=1e-5)


def test_what_is_kept_is_what_the_chain_rule_reads_again(one):
    """A product reads both operands, ReLU its result, a square its operand; the first product's gradient of x is
    nobody's.
    """
    graph = one[3]
    kept = {
        (start, next(n.label for n in graph.nodes if n.makes == end)) for start, end, k in graph.edges if k == "kept"
    }
    assert kept == {
        ("x", "matmul"),
        ("relu", "matmul"),
        ("w2", "matmul"),
        ("relu", "relu_grad"),
        ("loss_fn.sub", "mul"),
    }
    assert "4 values of forward are read again backward" in str(graph)  # relu twice


@pytest.mark.quick(1)
@pytest.mark.parametrize("rank", [0, 5])
def test_every_instruction_of_a_rank_is_a_node_messages_included(rank):
    graph = gradients.graph(rank)
    strategies = gradients.GATHERING
    lab = pl.StrategyLab()
    for operator, strategy in strategies.items():
        lab.set_strategy(operator, strategy)
    sent = [m for m in lab.snapshot()["messages"] if m["kind"] != "slice"]
    assert sum(n.kind == "message" for n in graph.nodes) == len(sent)
    first = {n.makes: i for i, n in enumerate(graph.nodes)}
    assert all(first[start] < first[end] for start, end, _ in graph.edges)  # in the order in which they run
    assert {n.of for n in graph.nodes} >= {"w", "w2"}
    assert all(n.size is not None for n in graph.nodes)


def test_backward_stands_under_its_operator_and_no_two_nodes_in_one_place():
    graph = gradients.graph()
    at = {n.makes: n for n in graph.nodes}
    assert at["relu.grad"].column == at["relu"].column and at["matmul2.grad_1"].column == at["matmul2"].column
    assert at["matmul.grad"].column == at["matmul.partial"].column
    assert len({(n.column, n.row) for n in graph.nodes}) == len(graph.nodes)
    backward = [n.column for n in graph.nodes if n.phase == "backward" and n.kind == "backward"]
    assert backward[0] == max(backward) and backward[-1] == min(backward)


def test_the_picture_is_one_svg_with_words_and_no_sign_is_colour_alone():
    graph = gradients.graph()
    html = graph._repr_html_()
    svg = ET.fromstring(graph.svg())
    assert svg.attrib["role"] == "img" and svg.attrib["aria-label"] == graph.title
    boxes = svg.findall("g")
    assert len(boxes) == len(graph.nodes) and all(box.find("title").text for box in boxes)
    assert str(graph).splitlines()[0] in html and "http" not in html and "<script" not in html
    assert "#" not in graph.svg().replace("url(#pl-gradient-arrow)", "")  # no colour: borders, dashes and words


def test_what_cannot_be_drawn_is_refused(one):
    with pytest.raises(ArgumentError, match="rank 1"):
        gradient_graph(one[2], 1)
    with pytest.raises(ArgumentError, match="2 stages"):
        gradient_graph(pl.PipelineLab(stages=2).compiled())
    assert all(n.size is None for n in gradient_graph(one[2]).nodes)
