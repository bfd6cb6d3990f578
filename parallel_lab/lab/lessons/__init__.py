"""One module per lesson, with all that its notebook uses besides `parallel_lab` itself.

The course's lessons, whose numbers stay: 01 quickstart, 02 messages and collectives, 03 data parallel,
04 fusion, 05 slicing one product, 06 chains and redistribution, 07 gradients travel backwards, 08 optimizer parallel,
09 pipelines, 10 memory for time, 11 choose, 12 compose, 13 MindSpore scripts, 14 sequence parallel,
15 context parallel, 16 expert parallel, 17 from shard to DTensor. Lesson NN is `notebooks/NN_name.ipynb`. It imports
from `name.py` here; its exercises NN.1, NN.2, ... are in `lab/exercises/lesson_NN.py`. `inside.py` is for
`notebooks/20_inside.ipynb`, an evening with the kernel, which is not a lesson.
"""
