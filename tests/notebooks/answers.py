"""A right answer to each exercise of the notebooks, as a learner would write it into its cell (without the check)."""

from parallel_lab.lab.exercises.broken_scripts import SCRIPTS

REPAIRS = {  # a part of each script of lesson 13, and what it should be
    "13.1": ("    total =", "    init()\n    total ="),
    "13.2": ("((3, 1), (1, 1))", "((2, 1), (2, 1))"),
    "13.3": ("net[0].pipeline_stage = 0\n", "net[0].pipeline_stage, net[1].pipeline_stage = 0, 1\n"),
    "13.4": (
        "ms.Tensor(loss)\n    if get_rank() == 0:\n        mean = ms.ops.AllReduce()(mean) / get_group_size()\n",
        "ms.ops.AllReduce()(ms.Tensor(loss)) / get_group_size()\n    if get_rank() == 0:\n",
    ),
    "13.5": ("files[0]", "files[get_rank()]"),
    "13.6": ('"data_parallel"', '"data_parallel", gradients_mean=True'),
    "13.7": ("shuffle=False", "shuffle=False, num_shards=get_group_size(), shard_id=get_rank()"),
    "13.8": ("100 + ms.communication.get_rank()", "100"),
    "13.9": ('"full_batch"', '"data_parallel"'),
    "13.10": ("optimizer=True", 'optimizer=True, parallel_optimizer_config={"parallel_optimizer_threshold": 0}'),
}

LANE = """
def lane(rank, kinds):
    return [f"{rank}{kind}{kinds[:at].count(kind)}" for at, kind in enumerate(kinds)]
"""

ANSWERS = {
    "01.1": """
def stands(rank, rows, columns):
    row, column = divmod(rank, columns)
    return row, column, [row * columns + n for n in range(columns)]
""",
    "02.1": """
def ring_reduce_scatter(rank, ranks, chunks):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(ranks - 1):
        yield Request("send", (rank, right), chunks[(rank - 1 - step) % ranks])
        at = (rank - 2 - step) % ranks
        chunks[at] = chunks[at] + (yield Request("recv", (left, rank)))
    return chunks[rank]
""",
    "02.2": """
def ring_all_gather(rank, ranks, chunk):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    chunks = {rank: chunk}
    for step in range(ranks - 1):
        yield Request("send", (rank, right), chunks[(rank - step) % ranks])
        chunks[(rank - 1 - step) % ranks] = yield Request("recv", (left, rank))
    return [chunks[r] for r in range(ranks)]
""",
    "02.3": """
def ring_s(ranks, size_bytes, alpha_s, beta_s_per_byte):
    return 2 * (ranks - 1) * (alpha_s + beta_s_per_byte * size_bytes / ranks)


def switch_bytes(ranks, alpha_s, beta_s_per_byte):
    rounds = np.log2(ranks)
    return alpha_s * (2 * (ranks - 1) - rounds) / (beta_s_per_byte * (rounds - 2 * (ranks - 1) / ranks))


half_size_bytes = fit.alpha_s / fit.beta_s_per_byte
""",
    "02.4": 'choices = {1_000: "recursive_doubling", 64_000: "halving_doubling_near_first", 1_000_000: "ring", '
    '64_000_000: "ring"}',
    "03.1": """
settings = {
    "sgd": {"gradients_mean": False, "learning_rate": 0.1 / 4},
    "momentum": {"gradients_mean": True, "learning_rate": 0.1},
    "adam": {"gradients_mean": False, "learning_rate": 0.01},
}
""",
    "03.2": """
def weights_for(rows):
    return [n / sum(rows) for n in rows]
""",
    "03.3": """
def blow_up_step(rate, ranks):
    growth, loss, step = (1 - ranks * rate) ** 2, 1.0, 1
    while growth > 1 and loss <= 1e6:
        loss, step = loss * growth, step + 1
    return step if growth > 1 else None
""",
    "04.1": """
def buckets_by_size(sizes_bytes, threshold_mb):
    buckets, total = [[]], 0
    for position, size in enumerate(sizes_bytes):
        buckets[-1].append(position)
        total += size
        if total > threshold_mb * 1024 * 1024 or threshold_mb == 0:
            buckets.append([])
            total = 0
    return [bucket for bucket in buckets if bucket]
""",
    "04.2": "indices = [0, 3, 5]",
    "04.3": """
def exposed_s(ready_s, sizes_bytes, backward_s, alpha_s, beta_s_per_byte):
    end_s = 0
    for ready, size in zip(ready_s, sizes_bytes):
        end_s = max(end_s, ready) + alpha_s + beta_s_per_byte * size
    return max(0, end_s - backward_s)
""",
    "05.1": "sends = [1, 8, 1, 4, None, 1, 2, None, 2, None, None, 4]",
    "05.2": """
def slices(m, k, n, strategy):
    (a, b), (_, c) = strategy
    return (m // a, k // b), (k // b, n // c), (m // a, n // c), b
""",
    "05.3": "strategy = ((2, 2), (2, 2))",
    "06.1": """
def row_to_column(rank, ranks, rows):
    columns = yield Request("all_to_all", tuple(range(ranks)), rows, split_dim=1, concat_dim=0)
    return columns
""",
    "06.2": 'strategies = {"matmul": ((2, 1), (1, 4)), "relu": ((2, 4),), "matmul2": ((2, 4), (4, 1))}',
    "06.3": 'chain = {"matmul": ((1, 1), (1, 8)), "relu": ((1, 8),), "matmul2": ((1, 2), (2, 4))}',
    "07.1": """
duals = {"all_reduce": "all_reduce", "all_to_all": "all_to_all", "copy": "all_reduce"}
for one, other in (("all_gather", "reduce_scatter"), ("broadcast", "reduce"), ("scatter", "gather")):
    duals |= {one: other, other: one}
""",
    "07.2": """
def backward(rank, ranks, kept):
    x, gamma, w1, w2, hidden, dz = kept
    dhidden = (dz @ w2.T) * (hidden > 0)
    dscaled = yield Request("all_reduce", tuple(range(ranks)), dhidden @ w1.T)
    return hidden.T @ dz, (gamma * x).T @ dhidden, (dscaled * x).sum(axis=0), dscaled * gamma
""",
    "07.3": """
def clip(rank, ranks, gradients):
    mine, copied = gradients
    squares = yield Request("all_reduce", tuple(range(ranks)), (mine**2).sum(keepdims=True))
    scale = min(1, 1 / np.sqrt(squares[0] + (copied**2).sum()))
    return mine * scale, copied * scale
""",
    "08.1": """
def bytes_per_rank(parameters, ranks, stage, param_bytes, grad_bytes, state_bytes):
    if stage >= 1:
        state_bytes /= ranks
    if stage >= 2:
        grad_bytes /= ranks
    if stage >= 3:
        param_bytes /= ranks
    return parameters * (param_bytes + grad_bytes + state_bytes)
""",
    "08.2": """
def zero1_step(rank, ranks, weights, gradient, velocity):
    everybody, size = tuple(range(ranks)), len(weights) // ranks
    mine = yield Request("reduce_scatter", everybody, gradient, reduce="mean")
    velocity = 0.9 * velocity + mine
    weights = yield Request("all_gather", everybody, weights[rank * size : (rank + 1) * size] - 0.1 * velocity)
    return weights, velocity
""",
    "08.3": 'model = {"width": 416, "level": "level3"}',
    "09.1": """
def bubble(stages, micro_batches, chunks=1):
    return (stages - 1) / (chunks * micro_batches + stages - 1)
""",
    "09.2": LANE
    + """

KINDS = [
    "FFFFBFBFBFBFBBBB",
    "FFFFBBFBFBFFBBBB",
    "FFFBFBBBFFBFBFBB",
    "FBFBFBFBFBFBFBFB",
]
schedule = [lane(rank, kinds) for rank, kinds in enumerate(KINDS)]
two_parts = None
""",
    "09.3": LANE
    + """

LEAN = [
    "FFFFBWFBBWFWFBWFBWBWBWBW",
    "FFFFBWBWBWFFBWFFBWBWBWBW",
    "FFFBWBWBWFBWFFBWFBFBWBWW",
    "FBFBFBWWWFBWFBFBWFBFBWWW",
]
WIDE = [
    "FFFFFFFFBWBWBWBWBWBWBWBW",
    "FFFFFFFFBWBWBWBWBWBWBWBW",
    "FFFBWBFBFBFBFBFBWBWWWWWW",
    "FBFBFBFBFBFBFBFBWWWWWWWW",
]
divided = {cap: [lane(*of) for of in enumerate(kinds)] for cap, kinds in ((4, LEAN), (8, WIDE))}
""",
    "10.1": "layers = {30: [0, 1, 2, 3, 4, 5, 8, 9, 10], 40: [0, 1, 2, 3, 4, 8, 9], 50: [0, 1, 2, 3, 8, 10]}",
    "10.2": """
def bandwidth(sizes_bytes, alpha_s, time_s):
    left_s = time_s - len(sizes_bytes) * alpha_s
    return sum(sizes_bytes) / left_s if left_s > 0 else None
""",
    "11.1": 'pin = {"matmul2": ((2, 1), (1, 4))}',
    "11.2": 'questions = ["d4 t4 p4 b1", "d2 t4 p8 b1", "d2 t4 p8 b1 zero1"]',
    "11.3": """
def enough(most, compute_s, size_bytes, alpha_s, beta_s_per_byte, gain):
    def step_s(n):
        return compute_s / n + 2 * (n - 1) * (alpha_s + beta_s_per_byte * size_bytes / n)

    ranks = 1
    while 2 * ranks <= most and step_s(ranks) >= gain * step_s(2 * ranks):
        ranks *= 2
    return ranks
""",
    "11.4": """
def micro_batches(stages, rows, row_s, start_s):
    counts = [m for m in range(stages, rows + 1) if rows % m == 0]
    return min(counts, key=lambda m: (m + stages - 1) * (start_s + row_s * rows / m))
""",
    "11.5": """
def nodes(strategy, per_node):
    (m, k), _ = strategy
    return len({i * (8 // (m * k)) // per_node for i in range(k)})
""",
    "12.1": """
best = {"stages": 2, "dp": 2, "tp": 2, "micro_batches": 8, "level": "level1", "recompute": [0, 1]}
work = train([best])
""",
    **{number: SCRIPTS[number].start.replace(*repair) for number, repair in REPAIRS.items()},
    "05.5": """
def sent_bytes(m, k, n, p, q, r, e):
    return ((q - 1) * m * k + (r - 1) * k * n + (p - 1) * m * n) * e / (p * q * r)
""",
    "08.4": """
def stored(weight, update):
    step = 2.0 ** np.floor(np.log2(weight + update)) / 128
    return np.round((weight + update) / step) * step
""",
    "14.4": """
def step_s(layers, copies, compute_s, send_s, start_s):
    compute, message = compute_s / copies, start_s + send_s / copies
    if copies == 1:
        return layers * (compute + message)
    return layers * copies * max(compute, message) + min(compute, message)
""",
    "14.1": """
def sent_bytes(b, s, h, t, e, inputs, results):
    return (3 * inputs + 2 * results) * b * s * h * e * (t - 1) / t
""",
    "14.2": """
def norm_inputs(b, s, h, t, e):
    return 2 * b * s * h * e / t
""",
    "14.3": """
norms = [f"norm{n}.{name}" for n in (1, 2) for name in ("gamma", "beta")]
summed = [*norms, "attention.out.bias", "mlp.fc2.bias"]
""",
    "15.1": """
def shared_out(n, speeds, rank):
    unit = n // (2 * sum(speeds))
    begin, length = unit * sum(speeds[:rank]), unit * speeds[rank]
    early = list(range(begin, begin + length))
    return early + sorted(n - 1 - i for i in early)
""",
    "15.2": """
def merge(o1, l1, o2, l2):
    most = np.maximum(l1, l2)
    most = np.where(most > -np.inf, most, 0)
    first, second = np.exp(l1 - most), np.exp(l2 - most)
    both = np.where(first + second > 0, first + second, 1)
    l = np.where(first + second > 0, most + np.log(both), -np.inf)
    return (o1 * first[:, None] + o2 * second[:, None]) / both[:, None], l
""",
    "15.3": """
def enough_tokens(flops_per_s, bytes_per_s, start_s, heads, kv_heads, head_size, number_bytes):
    of_pairs = 2 * heads * head_size / flops_per_s
    of_token = 2 * kv_heads * head_size * number_bytes / bytes_per_s
    return max(np.roots([of_pairs, -of_token, -start_s]))
""",
    "15.4": "owners = [0, 1, 2, 3, 0, 1, 2, 1, 3, 3, 2, 0]",
    "16.1": """
def room(tokens, experts, k, factor):
    return int(np.ceil(tokens * k / experts * factor))
""",
    "16.2": """
def row_splits(rank, counts, owners):
    sent = np.zeros((len(counts), len(counts)), int)
    for expert, owner in enumerate(owners):
        sent[:, owner] += counts[:, expert]
    return sent[rank], sent[:, rank]
""",
    "16.3": """
def divisor(tp, cp, dp, ep, experts):
    return cp * dp
""",
    "16.4": "devices = [[1, 4, 7], [0, 4, 6], [3, 4, 5], [2, 4, 5]]",
    "16.5": 'run = {"tensor": 2, "context": 4, "stages": 2, "expert": 8}',
    "17.1": """
def holders(row, rows, mesh, order):
    found = []
    for rank, place in enumerate(np.ndindex(*mesh.values())):
        at, first, left = dict(zip(mesh, place)), 0, rows
        for axis in order:
            left //= mesh[axis]
            first += at[axis] * left
        found += [rank] * (first <= row < first + left)
    return found
""",
    "17.2": """
def cut_before(mesh, order, axis):
    names, before = list(mesh), order[: order.index(axis)]
    return np.prod([mesh[a] for a in before if names.index(a) > names.index(axis)], dtype=int)


def own_order(mesh, shape, strides, counts):
    its_own = np.arange(np.prod(list(mesh.values()))).reshape(*counts, -1)
    for rank, place in enumerate(np.ndindex(*mesh.values())):
        starts = [sum(by[axis] * at for axis, at in zip(mesh, place)) for by in strides]
        slices = tuple(start * count // size for start, count, size in zip(starts, counts, shape))
        if rank not in its_own[slices]:
            return False
    return True


def forms(mesh, shape, strides, pending):
    spec = tuple(tuple(sorted((a for a in mesh if by[a]), key=by.get, reverse=True)) for by in strides)
    codes = {axis: "P" if axis in pending else "R" for axis in mesh}
    for dim, order in enumerate(spec):
        for axis in order:
            factor = cut_before(mesh, order, axis)
            codes[axis] = f"SS{dim}:{factor}" if factor > 1 else f"S{dim}"
    counts = tuple(int(np.prod([mesh[a] for a in order], dtype=int)) for order in spec)
    strategy = "pending" if pending else counts if own_order(mesh, shape, strides, counts) else "order"
    return {"spec": spec, "placements": list(codes.values()), "strategy": strategy}
""",
    "17.3": """
def free(out, a, b):
    if "P" in (a, b):
        return "P" if "R" in (a, b) else ""
    split = {a, b} - {"R"}
    return "" if len(split) > 1 else "R" if not split else a if a in out and a != "R" else b if b in out else "P"


def cell(left, right, out, a, b):
    result = "R" if a == b == "R" else free(out, a, b)
    found = []
    for name, labels, here in (("a", left, a), ("b", right, b)):
        for to in ["R", *labels] if here != "R" and not result else []:
            kind = {"PR": "all_reduce", "SR": "all_gather", "PS": "reduce_scatter", "SS": "all_to_all"}
            if to != here and free(out, *((to, b) if name == "a" else (a, to))):
                found.append(f"{name} {kind[('P' if here == 'P' else 'S') + ('R' if to == 'R' else 'S')]}")
    return result, sorted(set(found))
""",
    "17.4": """
def first_loss(operators):
    for at, name in enumerate(operators):
        if name == "all_reduce":
            return None
        if name not in ("scale", "negative", "transpose", "sum", "times a copy"):
            return at


def block(rank, ranks, mine):
    x, up, bias, down = mine
    whole = yield Request("all_reduce", tuple(range(ranks)), x @ up)
    h = np.maximum(whole + bias, 0)
    return h, h @ down
""",
    "17.5": 'moves = [("tp", 1), ("cp", 0), ("tp", 0), ("dp", 2), ("tp", 1), ("dp", 0)]',
    "10.3": "labels = [0, 2, 4, 6, 1, 3, 5, 7]",
    "03.4": """
def step_s(compute_s, size_bytes, ranks, alpha_s, beta_s_per_byte):
    messages = 2 * (ranks - 1)
    return compute_s / ranks + messages * (alpha_s + beta_s_per_byte * size_bytes / ranks)
""",
    "03.5": """
def rows_of(rank, ranks, rows, epoch):
    return np.random.default_rng(epoch).permutation(rows)[rank::ranks]


def step(rank, ranks, weights, gradient, loss):
    mean = yield Request("all_reduce", tuple(range(ranks)), gradient, reduce="mean")
    return weights - 0.1 * mean
""",
    "05.4": """
def holders(m, k, block):
    return tuple(range(block * k, block * k + k))


def relu_of_product(rank, ranks, partial):
    whole = yield Request("all_reduce", tuple(range(ranks)), partial)
    return np.maximum(whole, 0)
""",
}

# those to the exercises of notebooks/templates, which are in no lesson
OWN = {"my.1": "split = (8, 4)"}
