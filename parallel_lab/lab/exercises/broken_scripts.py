"""The scripts of the ladder in lesson 13, as learners get them, with what they say and the hints to their repair."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """A script that is to be repaired.

    title   of the exercise, in a few words
    says    a part of the error it raises; "" for one that is wrong without an error
    start   its source: a function, called on every rank
    hints   as those of an Exercise
    """

    title: str
    says: str
    hints: tuple[str, str, str, str]
    start: str

    @property
    def name(self) -> str:
        """The function's name."""
        return self.start.removeprefix("def ").partition("(")[0]


SCRIPTS = {
    "13.1": Script(
        "no rank of a world",
        "this process is not a rank of a world",
        (
            "How does a process find out which rank it is, and who the others are?",
            "Compare with the first script of this lesson, where two processes say hello.",
            "The ranks must meet before anything is sent or asked.",
            "Call the function that is imported and never used, as the first line after the imports.",
        ),
        """\
def script_1(x):
    import mindspore as ms
    from mindspore.communication import get_group_size, init

    total = ms.ops.AllReduce()(ms.Tensor(x))
    return total.asnumpy() / get_group_size()
""",
    ),
    "13.2": Script(
        "a strategy that does not fit",
        "splits dim 0 of input 0 3 ways",
        (
            "Into how many parts does the strategy divide the work, and how many devices are there to take them?",
            "Multiply the counts of all dims that are split. Which of them cut the weight?",
            "Counts are powers of two, and their product is at most 4. The weight is stored as outputs by inputs: its "
            "second count must be the second one of x, since both split the sum.",
            "Split the rows of x in two and the outputs of the weight in two: two times two parts for four devices.",
        ),
        """\
def script_2(x, y, w):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    ms.communication.init()
    net = ms.nn.Dense(8, 4, ms.Tensor(w), has_bias=False)
    net.matmul.shard(((3, 1), (1, 1)))
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return net.weight.asnumpy()
""",
    ),
    "13.3": Script(
        "an empty stage",
        "operators are on stages [0]",
        (
            "The pipeline has two stages. Which cell runs on the second one?",
            "A cell without a stage of its own joins the stage of what comes before it.",
            "Each of the two layers needs a stage, counted from 0.",
            "Give the second layer the stage 1, in a line below that of the first layer.",
        ),
        """\
def script_3(x, y, w1, w2):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", pipeline_stages=2)
    ms.communication.init()
    net = ms.nn.SequentialCell([ms.nn.Dense(*w.T.shape, ms.Tensor(w), has_bias=False) for w in (w1, w2)])
    net[0].pipeline_stage = 0
    pipeline = ms.nn.PipelineCell(ms.nn.WithLossCell(net, ms.nn.MSELoss()), 2)  # two micro-batches
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])
    ms.train.Model(pipeline, optimizer=ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return net[ms.communication.get_rank() // 2].weight.asnumpy()  # ranks 0 and 1 are the first stage
""",
    ),
    "13.4": Script(
        "one rank waits",
        "deadlock: rank 0 waits",
        (
            "Who calls the collective, and who would have to?",
            "Read the branch as rank 3 does: which lines does it run?",
            "A collective is over when all members of its group have called it. Printing is another matter.",
            "Take the sum out of the branch, so that every rank calls it, and leave only the print inside.",
        ),
        """\
def script_4(loss):
    import mindspore as ms
    from mindspore.communication import get_group_size, get_rank, init

    init()
    mean = ms.Tensor(loss)
    if get_rank() == 0:
        mean = ms.ops.AllReduce()(mean) / get_group_size()
        print("mean of the losses:", mean)
    return mean.asnumpy()
""",
    ),
    "13.5": Script(
        "one checkpoint for all",
        "",
        (
            "Four ranks have saved four files. What is in each of them?",
            "Print the shape of the weight in a file, and compare the columns of the result.",
            "A rank computes the columns that belong to its slice of the weight; the gather joins them by rank.",
            "Let each rank load the file that the rank of its own number has saved.",
        ),
        """\
def script_5(x, files):
    import mindspore as ms
    from mindspore.communication import get_rank, init

    init()
    w = ms.Tensor(files[0]["weight"])  # one of four slices, (1, 8), of a weight (4, 8)
    mine = ms.ops.MatMul(transpose_b=True)(w, ms.Tensor(x))
    return ms.ops.AllGather()(mine).asnumpy().T  # (16, 4)
""",
    ),
    "13.6": Script(
        "it learns too fast",
        "",
        (
            "What does AllReduce do with the gradients of four ranks, and what would one device do with 16 rows?",
            "Print the loss in each step. How much larger are the steps than those of one device?",
            "Sums are four times the mean here. A setting of the parallel context divides them.",
            "Ask for the mean of the gradients where the parallel mode is set.",
        ),
        """\
def script_6(x, y, w):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    ms.communication.init()
    net = ms.nn.Dense(8, 4, ms.Tensor(w), has_bias=False)
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])  # this rank's four rows
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return net.weight.asnumpy()
""",
    ),
    "13.7": Script(
        "everybody reads everything",
        "",
        (
            "How many steps does an epoch of 16 rows take on one device with batches of 16, and how many here?",
            "Print the size of the dataset on each rank.",
            "Each rank must read a quarter of the rows, and no row may be read twice. The dataset can divide them.",
            "Tell the dataset how many shards there are, and that this rank reads the shard of its own number.",
        ),
        """\
def script_7(x, y, w):
    import mindspore as ms
    from mindspore.communication import get_group_size, get_rank, init

    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    init()
    net = ms.nn.Dense(8, 4, ms.Tensor(w), has_bias=False)
    data = ms.dataset.GeneratorDataset(list(zip(x, y, strict=True)), ["x", "y"], shuffle=False).batch(4)
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return net.weight.asnumpy()
""",
    ),
    "13.8": Script(
        "four networks",
        "",
        (
            "Which numbers must be equal on all ranks before the first step, and where do they come from?",
            "Print one number of the weight before training, on every rank.",
            "Gradients are added up, weights are not: what differs at the start differs forever.",
            "Let all ranks draw their weights with one seed.",
        ),
        """\
def script_8(x, y):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    ms.communication.init()
    ms.set_seed(100 + ms.communication.get_rank())
    net = ms.nn.Dense(8, 4, "normal", has_bias=False)
    before = net.weight.asnumpy().copy()
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])  # this rank's four rows
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return before, net.weight.asnumpy()
""",
    ),
    "13.9": Script(
        "not the full batch",
        "",
        (
            "What does the setting of the dataset promise about the rows on the four ranks, and is it true?",
            "With a full batch all ranks hold the same rows, and the split operator takes its part of them. Which rows "
            "does nobody use if each rank holds different ones?",
            "Either each rank reads all rows, or the strategy of the dataset says that each has its own.",
            "Set the dataset's strategy to that of data parallel: then the rows of the ranks form one batch.",
        ),
        """\
def script_9(x, y, w):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    ms.communication.init()
    net = ms.nn.Dense(8, 4, ms.Tensor(w), has_bias=False)
    net.matmul.shard(((4, 1), (1, 1)))
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])  # this rank's four rows
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.SGD(net.trainable_params(), 0.1)).train(3, data)
    return net.weight.asnumpy()
""",
    ),
    "13.10": Script(
        "no memory saved",
        "",
        (
            "Optimizer parallel is on. Which weights does it divide, and how large is this one?",
            "Print the shape of the weight that a rank holds after training: it is whole.",
            "Small weights stay whole, and the limit is 64 KB unless another one is set.",
            "Set the threshold in the configuration of the parallel optimizer to 0.",
        ),
        """\
def script_10(x, y, w):
    import mindspore as ms

    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")
    ms.set_auto_parallel_context(enable_parallel_optimizer=True)
    ms.communication.init()
    net = ms.nn.Dense(8, 4, ms.Tensor(w), has_bias=False)
    net.matmul.shard(((4, 1), (1, 1)))
    data = ms.dataset.GeneratorDataset([(x, y)], ["x", "y"])  # this rank's four rows
    ms.train.Model(net, ms.nn.MSELoss(), ms.nn.Momentum(net.trainable_params(), 0.1, 0.9)).train(3, data)
    return net.weight.asnumpy()  # of this rank: it should hold a quarter, (1, 8)
""",
    ),
}
