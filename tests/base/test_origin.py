"""Whose lines those of a file are."""

import os
import sys

import numpy as np

import parallel_lab as pl
from parallel_lab.base.origin import PACKAGE, is_learners
from tests.crossed import each_of

OURS = os.path.dirname(pl.__file__)


@each_of(
    "file",
    pl.__file__,
    os.path.join(OURS, "ops", "core.py"),
    os.__file__,
    np.__file__,
    "/usr/lib/python3.12/site-packages/lib.py",
    "/usr/lib/python3/dist-packages/lib.py",
    "C:\\Python312\\Lib\\site-packages\\lib.py",
    "<frozen importlib._bootstrap>",
    "<string>",
)
def test_files_that_no_learner_wrote(file):
    assert not is_learners(file)


@each_of(
    "file",
    # folders that begin like the package's, or hold the whole environment
    OURS + "_course/net.py",
    OURS + ".py",
    os.path.join(os.path.dirname(OURS), "net.py"),
    os.path.join(sys.prefix, "net.py"),
    os.path.join(sys.prefix + "_of_mine", "net.py"),
    os.path.dirname(os.__file__) + "_of_mine/net.py",
    "/usr/share/site-packages.py",
    "/tmp/ipykernel_12/345.py",
    "<ipython-input-1-abc>",
    "<stdin>",
)
def test_files_of_a_learner(file):
    assert is_learners(file)


def test_the_package_is_the_folder_of_its_modules():
    assert os.path.join(OURS, "") == PACKAGE
