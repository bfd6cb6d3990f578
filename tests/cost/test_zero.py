"""Closed forms of the ZeRO paper (Rajbhandari et al. 2020) against its tables 1 and 2; Adam, 1 GB = 1e9 bytes."""

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import zero_max_parameters, zero_memory, zero_traffic

# ranks: (states split, gradients too, parameters too) in GB, as printed, for 7.5, 128 and 1000 billion parameters
TABLE_1 = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
CELLS = [
    (degree, parameters, stage, printed)
    for degree, models in TABLE_1.items()
    for parameters, stages in zip((7.5e9, 128e9, 1e12), models, strict=True)
    for stage, printed in zip((1, 2, 3), stages, strict=True)
]


@pytest.mark.quick(18)
@pytest.mark.parametrize(("degree", "parameters", "stage", "printed"), CELLS)
def test_memory_is_that_of_table_1(degree, parameters, stage, printed):
    """To the last digit printed; the paper rounds some entries and splits others off (4187.5 is printed as 4187)."""
    found = zero_memory(parameters, degree, stage).total_bytes / 1e9
    digits = len(str(printed).partition(".")[2])
    assert abs(found - printed) < 10**-digits


@pytest.mark.parametrize("degree", TABLE_1)
def test_nothing_cut_takes_16_bytes_per_parameter(degree):
    whole = zero_memory(7.5e9, degree, 0)
    parts = (whole.params_bytes, whole.grads_bytes, whole.optimizer_bytes)
    assert (parts, whole.total_bytes) == ((15e9, 15e9, 90e9), 120e9)


@pytest.mark.parametrize("model_parallel", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("stage", "printed"), [(0, 2.0), (1, 7.6), (2, 14.4), (3, 128.0)])
def test_the_largest_models_are_those_of_table_2(stage, printed, model_parallel):
    """Billions of parameters on 64 ranks with 32 GB each, times the ranks that split the model."""
    found = zero_max_parameters(32e9, 64, stage, model_parallel=model_parallel) / 1e9
    assert abs(found / model_parallel - printed) < 0.05


@pytest.mark.parametrize("stage", range(4))
def test_the_largest_model_fills_the_memory(stage):
    most = zero_max_parameters(32e9, 8, stage, param_bytes=4, grad_bytes=4, optimizer_bytes=8)
    found = zero_memory(most, 8, stage, param_bytes=4, grad_bytes=4, optimizer_bytes=8).total_bytes
    assert found == pytest.approx(32e9)


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_traffic_tends_to_the_paper_s_multiples(stage, times):
    assert zero_traffic(1000, 1, stage) == 0
    assert zero_traffic(1000, 2, stage) == times * 500
    assert zero_traffic(1000, 1_000_000, stage) == pytest.approx(times * 1000, rel=1e-5)


@pytest.mark.parametrize("stage", [4, -1, True, 1.0, "1", None])
def test_an_invalid_stage_and_no_bytes_are_refused(stage):
    for form in (zero_memory, zero_traffic):
        with pytest.raises(ArgumentError, match=f"stage={stage!r}"):
            form(1e9, 4, stage)
    with pytest.raises(ArgumentError, match="takes no bytes"):
        zero_max_parameters(1e9, 4, 1, param_bytes=0, grad_bytes=0, optimizer_bytes=0)
