"""The nets recorded in MindSpore 2.10 (`train_*.npz`, strategies): its interface, with the imports replaced."""

from parallel_lab import nn, ops
from parallel_lab.nn.initializer import initializer
from parallel_lab.nn.tensor.parameter import Parameter, ParameterTuple


def new_parameter(shape, name, init="normal"):
    return Parameter(initializer(init, shape), name)


class Quick(nn.Cell):
    """MatMul-ReLU-MatMul. s1, sr, s2: strategies of the three operators, or None."""

    def __init__(self, i, h, o, s1=None, sr=None, s2=None):
        super().__init__()
        self.weight, self.weight2 = new_parameter([i, h], "w"), new_parameter([h, o], "w2")
        self.matmul, self.relu, self.matmul2 = ops.MatMul(), ops.ReLU(), ops.MatMul()
        for primitive, strategy in ((self.matmul, s1), (self.relu, sr), (self.matmul2, s2)):
            if strategy:
                primitive.shard(strategy)

    def construct(self, x):
        return self.matmul2(self.relu(self.matmul(x, self.weight)), self.weight2)


class OpPar(nn.Cell):
    """784-512-512-10 with operator-level strategies for 8 devices."""

    def __init__(self, shard=True):
        super().__init__()
        self.flatten = ops.Flatten()
        self.w1, self.w2 = new_parameter([784, 512], "fc1"), new_parameter([512, 512], "fc2")
        self.w3 = new_parameter([512, 10], "fc3")
        self.matmul1, self.matmul2, self.matmul3 = ops.MatMul(), ops.MatMul(), ops.MatMul()
        self.relu1, self.relu2 = ops.ReLU(), ops.ReLU()
        if shard:
            self.matmul1.shard(((2, 4), (4, 1)))
            self.relu1.shard(((4, 1),))
            self.matmul2.shard(((1, 8), (8, 1)))
            self.relu2.shard(((8, 1),))

    def construct(self, x):
        x = self.flatten(x)
        x = self.relu1(self.matmul1(x, self.w1))
        x = self.relu2(self.matmul2(x, self.w2))
        return self.matmul3(x, self.w3)


class Chain(nn.Cell):
    """x @ w1 @ w2 @ ..., one strategy (or None) per MatMul."""

    def __init__(self, dims, strategies):
        super().__init__()
        self.n = len(dims) - 1
        self.ws = ParameterTuple([new_parameter([dims[k], dims[k + 1]], f"w{k + 1}") for k in range(self.n)])
        self.mms = []
        for k in range(self.n):
            m = ops.MatMul().add_prim_attr("layer", k + 1)
            if strategies and strategies[k]:
                m.shard(strategies[k])
            self.mms.append(m)

    def construct(self, x):
        for k in range(self.n):
            x = self.mms[k](x, self.ws[k])
        return x


class Mlp(nn.Cell):
    """Dense with ReLU twice, then Dense."""

    def __init__(self, i, h, o):
        super().__init__()
        self.d1, self.d2, self.d3 = nn.Dense(i, h, activation="relu"), nn.Dense(h, h, activation="relu"), nn.Dense(h, o)

    def construct(self, x):
        return self.d3(self.d2(self.d1(x)))


class MegatronMlp(nn.Cell):
    """Cut by columns, then by rows, with bias and GeLU."""

    def __init__(self, h, f, dp, mp):
        super().__init__()
        self.w1, self.b1 = new_parameter([h, f], "w1"), new_parameter([f], "b1", "zeros")
        self.w2, self.b2 = new_parameter([f, h], "w2"), new_parameter([h], "b2", "zeros")
        self.mm1 = ops.MatMul().shard(((dp, 1), (1, mp)))
        self.add1 = ops.Add().shard(((dp, mp), (mp,)))
        self.gelu = ops.GeLU().shard(((dp, mp),))
        self.mm2 = ops.MatMul().shard(((dp, mp), (mp, 1)))
        self.add2 = ops.Add().shard(((dp, 1), (1,)))

    def construct(self, x):
        return self.add2(self.mm2(self.gelu(self.add1(self.mm1(x, self.w1), self.b1)), self.w2), self.b2)


class Layers(nn.Cell):
    """n equal layers, for fusion, pipeline and recompute."""

    def __init__(self, n, d, s=None, stages=None, fusion=None, recompute=False):
        super().__init__()
        self.blocks = nn.CellList([One(d, s) for _ in range(n)])
        for k, c in enumerate(self.blocks):
            if stages:
                c.pipeline_stage = stages[k]
            if fusion:
                c.set_comm_fusion(fusion[k])
            if recompute:
                c.recompute()

    def construct(self, x):
        for c in self.blocks:
            x = c(x)
        return x


class One(nn.Cell):
    """MatMul-ReLU."""

    def __init__(self, d, s):
        super().__init__()
        self.w = new_parameter([d, d], "w")
        self.mm, self.relu = ops.MatMul(), ops.ReLU()
        if s:
            self.mm.shard(s)

    def construct(self, x):
        return self.relu(self.mm(x, self.w))


class SharedWeight(nn.Cell):
    """One Parameter used by two MatMuls."""

    def __init__(self, d, s1, s2):
        super().__init__()
        self.w = new_parameter([d, d], "w")
        self.mm1, self.mm2 = ops.MatMul().shard(s1), ops.MatMul().shard(s2)

    def construct(self, x):
        return self.mm2(self.mm1(x, self.w), self.w)
