"""Data: pipelines that every rank reads alike, MNIST and CIFAR-10 files, shipped pictures, quickstart's batch.

import parallel_lab.train.dataset as ds

dataset = ds.MnistDataset(ds.digits_folder(), "train", num_shards=8, shard_id=rank)
dataset = dataset.map([ds.vision.Rescale(1 / 255, 0), ds.vision.HWC2CHW()], "image")
for image, label in dataset.map(ds.transforms.TypeCast("int32"), "label").batch(32):
    ...
"""

# ruff: noqa: F401 - imported for others: this is a public face

from . import config, transforms, vision
from .cifar import read_cifar10, write_cifar10
from .digits import load_digits, read_digit_files, seed_batch
from .idx import read_idx, write_idx
from .images import Cifar10Dataset, MnistDataset, digits_cifar_folder, digits_folder, load_digits_cifar
from .iterators import DatasetIterator
from .pipeline import Dataset, zip_datasets as zip
from .samplers import BuiltinSampler, DistributedSampler, IterSampler, Sampler, SubsetSampler
from .sources import GeneratorDataset, NumpySlicesDataset
