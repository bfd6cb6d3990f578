"""Training a network under strategies and on one device, for comparison."""

import numpy as np

from parallel_lab import Session, compile, nn

# float64: a missing or doubled addend is off by a tenth at least, another order of sums by 1e-14
BOUND = 1e-10


def trained(make_net, loss, inputs, shard=None, *, steps=3, devices=8, executor="simulator"):
    """(losses, {parameter: values}) after `steps` of SGD; without `shard` on one device."""
    net = make_net()
    net.set_train()
    if shard is not None:
        shard(net)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    settings = (
        {"parallel_mode": "stand_alone"} if shard is None else {"device_num": devices, "dataset_strategy": "full_batch"}
    )
    plan = compile(net, *inputs, loss=loss, optimizer=optimizer, **settings)
    with Session(plan, net, optimizer, executor=executor) as session:
        losses = session.train([inputs], steps)
        return losses, session.parameters(), plan


def check_equals_one_device(make_net, loss, inputs, shard, **options):
    """Losses and parameters, running statistics included, after some steps. Returns the parallel plan."""
    losses, parameters, plan = trained(make_net, loss, inputs, shard, **options)
    wanted_losses, wanted, _ = trained(make_net, loss, inputs, **{k: v for k, v in options.items() if k == "steps"})
    np.testing.assert_allclose(losses, wanted_losses, rtol=BOUND)
    assert parameters.keys() == wanted.keys()
    for name, values in wanted.items():
        # values that stay 0 (the bias of keys has no effect) are roundings of sums: 1e-15 of what is summed
        np.testing.assert_allclose(
            parameters[name], values, rtol=BOUND, atol=BOUND * max(np.abs(values).max(), 1e-3), err_msg=name
        )
    return plan


def messages(plan, phase="forward"):
    """The communication instructions of one phase."""
    return [i for i in plan.stages[0].program(phase) if i.is_communication]
