"""Pipeline stages on real processes, against one device. Cases: `cases/pipeline.py`, `cases/pipeline_files.py`."""

import pytest

from tests.processes.pools import NEEDS_MPI
from tests.train.cases import pipeline, pipeline_files
from tests.train.worlds import Worlds, assert_equals_one_device, assert_refused, by_mpirun, compared, pairs, sizes

worlds, test_ranks_equal_one_device = compared(pipeline, quick=2)  # the others are exhaustive


@pytest.fixture(scope="module")
def by_mpi(tmp_path_factory):
    return Worlds(pipeline, tmp_path_factory.mktemp("mpi"), by_mpirun)


@NEEDS_MPI
@pytest.mark.exhaustive
@pytest.mark.parametrize(("size", "name"), pairs(pipeline))
def test_ranks_of_mpirun_equal_one_device(by_mpi, size, name):
    assert_equals_one_device(by_mpi, size, name)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Worlds(pipeline_files, tmp_path_factory.mktemp("files"))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("size", "name"), pairs(pipeline_files))
def test_training_goes_on_from_the_files_of_other_stages(files, size, name):
    """A rank has, saves and asks for the parameters of its own stage alone."""
    assert_equals_one_device(files, size, name)
    for rank, noted in enumerate(files.notes(size, name)):
        other = 1 - rank * 2 // size
        assert_refused(noted["read"], "WorldError", (noted["away"], f"It lies on the ranks of stage {other}"))
        if "saved" in noted:
            assert noted["away"] not in noted["saved"] and f"moments.{noted['away']}" not in noted["saved"]
            assert any(n.startswith("moments.") for n in noted["saved"])
            assert (noted["away"] in noted["wanted"]) == ("to 1" in name)


@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("name", pipeline.DISAGREEING)
def test_stages_that_disagree_are_reported_before_the_first_step(worlds, size, name):
    """On every rank, with the ranks of both programs: none waits for what another one will never send."""
    for note in worlds.notes(size, name):
        assert_refused(note, "CollectiveMismatch", ("rank 0", f"rank {size // 2}"))
