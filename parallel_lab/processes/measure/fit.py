"""The alpha-beta model of this machine, fitted to its ranks' times: t(m) = alpha + beta m for m bytes.

    fit = fit_link(2)                        # send and recv between two workers, 64 B to 16 MiB
    print(fit.text())                        # alpha, beta, residual of every size, error on sizes the fit has not seen
    cluster = measured_cluster(fit, device=measure_device(8), world_size=8)
    predict_timeline(plan, cluster);  Session(plan, net, optimizer, cluster=cluster)
    predict_timeline(plan, fit_machine(8))   # all that a step is predicted from, on the cores that there are

    symbol   unit             meaning                                                   MindSpore's cost model calls it
    alpha    s per message    start-up: what a message of no bytes takes                beta
    beta     s per byte       1 / bandwidth                                             alpha
    n_1/2    bytes            alpha / beta: a message this long reaches half the bandwidth

MindSpore writes t = alpha m + beta, letters swapped; here they are Hockney's (1994), as in `cluster.Link`.

The line is the one with the smallest relative residuals, sum of ((alpha + beta m - t) / t)^2, neither below 0. The
usual least squares is decided by the largest message alone and returns start-ups that mean nothing, negative ones too.
Intervals are 95 % of a bootstrap over the repeats. Every second size is kept out of a second fit and predicted by it:
where those errors are large (median above 15 %, one above 40 %) no line describes the machine: `Fit.accepted` is False.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...base.cluster import Cluster, Device, Link, get_cluster
from ...base.errors import ArgumentError, escape, shorten
from ...base.log_chart import Series, log_chart
from ...base.progress import Progress
from ...base.system import cores as cores_here
from ...base.units import bytes_text, time_text
from ...cost.shared_cores import SharedMachine
from .measure import FIT_KIND, load as load_now, measure_call, measure_device, message_samples, pool_of

SIZES_BYTES = tuple(1 << power for power in range(6, 25))  # 64 B to 16 MiB; larger ones only repeat the slope
MACHINE_SIZES = tuple(4**n for n in range(3, 11))  # 64 B to 1 MiB: what networks of the labs send
MEDIAN_LIMIT, MAX_LIMIT = 0.15, 0.40  # relative errors on sizes that were kept out, up to which one line is said to fit
BOOTSTRAPS = 400


@dataclass(frozen=True)
class Fit:
    """A fitted line and what it was fitted to. All tuples are by size, in the order of `sizes_bytes`.

    kind               "send" (half of a round trip between two ranks), "all_reduce" (whole call, `sizes_bytes` is what
                       each rank gives), or "behind_work": its halves, a reduce_scatter and an all_gather, each behind a
                       product as in a step, with the waiting that they bring, without the products
    world_size, cores  ranks that took part in the message; processors of the machine
    median_s, low_s, high_s, min_s   of the repeats: median, quartiles, smallest
    alpha_s            seconds per message
    beta_s_per_byte    seconds per byte
    alpha_interval_s, beta_interval_s_per_byte   95 % of a bootstrap over the repeats
    held_out_errors    |fit - median| / median of every second size, by a fit that has not seen it
    load               1-minute load average when it was measured
    """

    kind: str
    world_size: int
    cores: int
    sizes_bytes: tuple[int, ...]
    median_s: tuple[float, ...]
    low_s: tuple[float, ...]
    high_s: tuple[float, ...]
    min_s: tuple[float, ...]
    alpha_s: float
    beta_s_per_byte: float
    alpha_interval_s: tuple[float, float]
    beta_interval_s_per_byte: tuple[float, float]
    held_out_errors: tuple[float, ...]
    load: float = 0.0

    def time_s(self, size_bytes: float) -> float:
        """Seconds the line says for `size_bytes`."""
        return self.alpha_s + self.beta_s_per_byte * size_bytes

    @property
    def residuals(self) -> tuple[float, ...]:
        """(fit - measured) / measured, of the medians."""
        return tuple((self.time_s(m) - t) / t for m, t in zip(self.sizes_bytes, self.median_s, strict=True))

    @property
    def max_residual(self) -> float:
        """The largest of |residuals|."""
        return max(map(abs, self.residuals))

    @property
    def r_squared(self) -> float:
        """Share of the variance of log t that the line explains; of t itself the largest size alone would decide."""
        logs = np.log(self.median_s)
        left = float(np.sum((logs - np.log([self.time_s(m) for m in self.sizes_bytes])) ** 2))
        spread = float(np.sum((logs - logs.mean()) ** 2))
        if spread < 1e-18 * len(logs):  # all times are equal, up to rounding: there is nothing to explain
            return float(left < 1e-18 * len(logs))
        return 1 - left / spread

    @property
    def half_size_bytes(self) -> float:
        """n_1/2 = alpha / beta: bytes of a message at half the bandwidth; infinite where bytes cost nothing."""
        return self.alpha_s / self.beta_s_per_byte if self.beta_s_per_byte else math.inf

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """1 / beta; infinite where bytes cost nothing."""
        return 1 / self.beta_s_per_byte if self.beta_s_per_byte else math.inf

    @property
    def accepted(self) -> bool:
        """Whether one line describes the sizes that were kept out: median error at most 15 %, none above 40 %."""
        return statistics.median(self.held_out_errors) <= MEDIAN_LIMIT and max(self.held_out_errors) <= MAX_LIMIT

    @property
    def pieces(self) -> tuple[tuple[int, int, float, float], ...]:
        """The best lines for small and large messages: (smallest size, largest size, alpha_s, beta_s_per_byte) of each;
        () below six sizes. Each has three sizes or more; they meet where squared relative residuals are least (a
        cache's end).
        """
        sizes, times = np.array(self.sizes_bytes, float), np.array(self.median_s)
        found: list[tuple[float, tuple[tuple[int, int, float, float], ...]]] = []
        for at in range(3, len(sizes) - 2):
            left, parts = 0.0, []
            for m, t in ((sizes[:at], times[:at]), (sizes[at:], times[at:])):
                alpha, beta = _line(m, t)
                left += float(np.sum(((alpha + beta * m - t) / t) ** 2))
                parts.append((int(m[0]), int(m[-1]), alpha, beta))
            found.append((left, tuple(parts)))
        return min(found)[1] if found else ()

    @property
    def oversubscribed(self) -> bool:
        """More ranks than processors: then alpha holds time slices of the scheduler, and is not that of a network."""
        return self.world_size > self.cores

    def link(self, gamma_s_per_byte: float = 0.0) -> Link:
        """The link whose closed forms (`cost.message_time_s`) give this line. send: the line itself; ring all_reduce of
        n ranks: alpha' = alpha / 2(n-1), beta' = (beta n/(n-1) - gamma) / 2, at least 0. `gamma_s_per_byte`: seconds to
        add a byte (`Device.gamma_s_per_byte`), which the closed form counts by itself.
        """
        if self.kind == "send":
            return Link(self.alpha_s, self.beta_s_per_byte)
        n = self.world_size
        return Link(self.alpha_s / (2 * (n - 1)), max(0.0, (self.beta_s_per_byte * n / (n - 1) - gamma_s_per_byte) / 2))

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self) -> str:
        """The fit as a table with units: parameters, then for each size what was measured and what the line says."""
        lines = [self._headline(), ""]
        lines += [f"{name:<26}  {value:<16}  {note}" for name, value, note in self._parameters()]
        lines += ["", f"{'size':>9}  {'measured':>10}  {'25 to 75 %':>21}  {'fitted':>10}  {'fitted - measured':>17}"]
        rows = zip(self.sizes_bytes, self.median_s, self.low_s, self.high_s, self.residuals, strict=True)
        for m, t, low, high, residual in rows:
            spread, fitted = f"{time_text(low)} to {time_text(high)}", time_text(self.time_s(m))
            lines.append(f"{bytes_text(m):>9}  {time_text(t):>10}  {spread:>21}  {fitted:>10}  {residual:>+16.0%}")
        return "\n".join([*lines, "", *self._notes()])

    def _headline(self) -> str:
        what = {
            "send": "send and recv (half a round trip)",
            "all_reduce": f"all_reduce of {self.world_size} ranks (whole call)",
            "behind_work": f"reduce_scatter and all_gather of {self.world_size} ranks, each behind a product",
        }[self.kind]
        machine = f"{len(self.sizes_bytes)} sizes, medians, load {self.load:.1f}, {self.cores} cores"
        return f"t = alpha + beta m    fitted to {what}: {machine}"

    def _parameters(self) -> list[tuple[str, str, str]]:
        a, b = self.alpha_interval_s, self.beta_interval_s_per_byte
        gigabytes_per_s = f"1/beta = {self.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
        speed = gigabytes_per_s if self.beta_s_per_byte else "bytes cost nothing here"
        half = bytes_text(self.half_size_bytes) if math.isfinite(self.half_size_bytes) else "-"
        median, largest = statistics.median(self.held_out_errors), max(self.held_out_errors)
        verdict = "one line fits" if self.accepted else "NO SINGLE LINE FITS these sizes"
        alpha, beta = self.alpha_s * 1e6, self.beta_s_per_byte * 1e9
        return [
            ("alpha [us per message]", f"{alpha:.3g}", f"95 %: {a[0] * 1e6:.3g} to {a[1] * 1e6:.3g}"),
            ("beta [ns per byte]", f"{beta:.3g}", f"95 %: {b[0] * 1e9:.3g} to {b[1] * 1e9:.3g};  {speed}"),
            ("n_1/2 = alpha/beta", half, "half the bandwidth is reached here"),
            ("R^2 of log t", f"{self.r_squared:.3f}", f"largest residual {self.max_residual:.0%}"),
            ("error on sizes kept out", f"{median:.0%} median", f"{largest:.0%} largest;  {verdict}"),
        ]

    def _notes(self) -> list[str]:
        lines = [
            "MindSpore's cost model writes t = alpha m + beta: its alpha is the time per byte, its beta the start-up."
        ]
        if not self.accepted and self.pieces:
            small, large = (f"alpha {a * 1e6:.3g} us, beta {b * 1e9:.3g} ns per byte" for _, _, a, b in self.pieces)
            end, start = bytes_text(self.pieces[0][1]), bytes_text(self.pieces[1][0])
            lines.append(f"Two lines: up to {end} {small}; from {start} {large}.")
        if self.oversubscribed:
            shared = f"{self.world_size} ranks share {self.cores} cores: alpha holds waiting for a core."
            lines.append(f"{shared} Do not carry it over to other numbers of ranks.")
        if self.kind != "send":
            link = self.link()
            alpha, beta = f"alpha {link.alpha_s * 1e6:.3g} us", f"beta {link.beta_s_per_byte * 1e9:.3g} ns per byte"
            lines.append(f"As a ring of messages: {alpha}, {beta} each.")
        return lines

    def _repr_html_(self) -> str:
        line = f"alpha {self.alpha_s * 1e6:.3g} us per message, beta {self.beta_s_per_byte * 1e9:.3g} ns per byte"
        fits = "one line fits" if self.accepted else "no single line fits these sizes"
        table = f"<details><summary>Times and statistics</summary><pre>{escape(self.text())}</pre></details>"
        return f"{fit_figure(self)}<p>{escape(f'{line}: {fits}.')}</p>{table}"


def fit_line(
    sizes_bytes: Sequence[int],
    samples_s: Sequence[Sequence[float]],
    *,
    kind: str = "send",
    world_size: int = 2,
    cores: int = 1,
    load: float = 0.0,
) -> Fit:
    """Fit t = alpha + beta m to repeats per size; a pure function (the bootstrap's draws are seeded).

    sizes_bytes  three or more, ascending
    samples_s    for each size the seconds of its repeats, one or more

    Raises ArgumentError for too few sizes, sizes in disorder, and times that are not finite and above 0.

    >>> exact = [[3e-6 + 2e-9 * m] for m in (64, 4096, 65536, 1 << 20)]
    >>> fit = fit_line((64, 4096, 65536, 1 << 20), exact)
    >>> round(fit.alpha_s * 1e6, 6), round(fit.beta_s_per_byte * 1e9, 6), fit.accepted
    (3.0, 2.0, True)
    """
    sizes, samples = tuple(int(m) for m in sizes_bytes), [np.asarray(s, float).reshape(-1) for s in samples_s]
    if len(sizes) < 3 or len(samples) != len(sizes) or list(sizes) != sorted(set(sizes)) or sizes[0] < 0:
        what = f"{len(sizes)} sizes {shorten(sizes)} and {len(samples)} rows of times"
        allowed = "Three sizes or more, ascending, and one row of times for each"
        raise ArgumentError(what, where="fit_line", allowed=allowed)
    if not all(s.size and np.isfinite(s).all() and (s > 0).all() for s in samples):
        allowed = "Seconds, one or more per size"
        raise ArgumentError("a time is not finite and above 0", where="fit_line", allowed=allowed)
    FIT_KIND("fit_line", "kind", kind)
    medians = np.array([np.median(s) for s in samples])
    alpha, beta = _line(sizes, medians)
    rng = np.random.default_rng(0)
    # medians as another run might have had them
    again = np.stack([np.median(rng.choice(s, (BOOTSTRAPS, s.size)), axis=1) for s in samples], axis=1)
    drawn = [_line(sizes, row) for row in again]
    (a_low, b_low), (a_high, b_high) = np.quantile(drawn, (0.025, 0.975), axis=0)
    held_alpha, held_beta = _line(sizes[::2], medians[::2])
    held_out = np.abs(held_alpha + held_beta * np.array(sizes[1::2], float) - medians[1::2]) / medians[1::2]

    def each(function: Any) -> tuple[float, ...]:
        return tuple(float(function(s)) for s in samples)

    return Fit(
        kind=kind,
        world_size=world_size,
        cores=cores,
        sizes_bytes=sizes,
        median_s=each(np.median),
        low_s=each(lambda s: np.quantile(s, 0.25)),
        high_s=each(lambda s: np.quantile(s, 0.75)),
        min_s=each(np.min),
        alpha_s=alpha,
        beta_s_per_byte=beta,
        alpha_interval_s=(float(a_low), float(a_high)),
        beta_interval_s_per_byte=(float(b_low), float(b_high)),
        held_out_errors=tuple(map(float, held_out)),
        load=load,
    )


def _line(sizes: Sequence[int], times: np.ndarray) -> tuple[float, float]:
    """(alpha, beta), neither below 0, with the smallest sum of squared relative residuals."""
    start, slope = 1 / times, np.asarray(sizes, float) / times
    scale = slope.max() or 1.0  # so that both columns are of one order; sizes may all be 0
    columns = np.stack((start / start.max(), slope / scale), axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    alpha, beta = alpha / start.max(), beta / scale
    # outside the quadrant the smallest residual lies on its border, on the axis of what came out positive
    if alpha < 0:
        return 0.0, float(slope.sum() / (slope @ slope))
    if beta < 0:
        return float(start.sum() / (start @ start)), 0.0
    return float(alpha), float(beta)


def fit_link(
    ranks: Any = 2,
    kind: str = "send",
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 30,
    warm_ups: int = 5,
) -> Fit:
    """Measure messages between real workers for some seconds, and fit. `ranks`: a number of workers, started and ended
    for this, or a pool (WorkerPool, MpiPool), which stays. `kind`: "send", half of a round trip between ranks 0 and 1,
    or "all_reduce" of all ranks after a barrier, the slowest rank's time, or "behind_work", which on a busy machine is
    what a training meets: a rank that waits for others loses the core. `sizes_bytes`: multiples of 4, behind work of 4
    per rank, ascending; `repeats`, `warm_ups`: per size. Raises ArgumentError (fewer than two ranks, wrong sizes), and
    what workers raise.
    """
    samples, world_size = message_samples(ranks, kind, tuple(sizes_bytes), repeats, warm_ups)
    taking_part = 2 if kind == "send" else world_size
    return fit_line(sizes_bytes, samples, kind=kind, world_size=taking_part, cores=cores_here(), load=load_now())


def measured_cluster(
    fit: Fit, *, device: Device | None = None, world_size: int | None = None, name: str = "measured"
) -> Cluster:
    """A profile with this machine's own link, for `predict_timeline`, `step_time_s` and `Session(cluster=...)`.
    `device`: what a rank computes with (default: laptop's); `world_size`: ranks it has room for (default: measured).
    """
    laptop = get_cluster("laptop")
    device, room = device or laptop.device, world_size or fit.world_size
    return Cluster(name, device, fit.link(device.gamma_s_per_byte), devices_per_node=room, host=laptop.host)


def fit_machine(
    ranks: Any, *, world_size: int | None = None, name: str = "this machine", progress: Progress | None = None
) -> SharedMachine:
    """Measure this machine for some seconds, for predictions of what its ranks do on the cores that they share.

    ranks       a number of workers, or a pool: 2, 4 or a multiple of 8
    world_size  ranks it has room for (default: measured)
    progress    counts what is measured: messages, products and copies, steps

    Bytes cost what they do in an all_reduce; what instructions and messages take whatever their sizes is measured in
    training steps of tiny tensors. Raises ArgumentError, and what workers raise.
    """
    progress = progress or Progress()
    progress.begin(3, "measuring messages")
    with pool_of(ranks, 2) as pool:
        fit = fit_link(pool, "all_reduce", sizes_bytes=MACHINE_SIZES, repeats=20)
        progress.step(1, "measuring products and copies")
        device = measure_device(pool)
        progress.step(1, "measuring steps")
        overhead_s, call_s = measure_call(pool)
        progress.step()
    cores = min(cores_here(), pool.world_size)
    share = pool.world_size / cores  # ranks of a core; of one on a core of its own:
    alone = {"flops_per_s": device.flops_per_s * share, "overhead_s": overhead_s / share}
    alone["memory_bandwidth_bytes_per_s"] = device.memory_bandwidth_bytes_per_s * share
    device, link = replace(device, **alone), fit.link(3 / device.memory_bandwidth_bytes_per_s)
    room, host = world_size or pool.world_size, get_cluster("laptop").host
    line = Link(0.0, link.beta_s_per_byte)
    return SharedMachine(name, device, line, room, host=host, cores=cores, call_s=call_s / share)


def fit_figure(fit: Fit) -> str:
    """Points with their quartiles, the line, and its two asymptotes alpha and beta m, log-log, as one SVG element."""
    first, last = max(fit.sizes_bytes[0], 1), fit.sizes_bytes[-1]
    steps = [first * (last / first) ** (i / 60) for i in range(61)]
    spread = tuple(zip(fit.low_s, fit.high_s, strict=True))
    medians = tuple(zip(fit.sizes_bytes, fit.median_s, strict=True))
    series = [Series("measured (median, 25 to 75 %)", medians, spread, line=False)]
    series.append(Series("fitted: alpha + beta m", tuple((m, fit.time_s(m)) for m in steps), marks=False))
    lowest = min(fit.low_s) / 2  # an asymptote far below the points would only squeeze the picture
    if fit.alpha_s > lowest:
        series.append(Series("alpha", ((first, fit.alpha_s), (last, fit.alpha_s)), marks=False, dashed=True))
    beyond = [(m, fit.beta_s_per_byte * m) for m in steps if fit.beta_s_per_byte * m > lowest]
    if len(beyond) > 1:
        series.append(Series("beta m", tuple(beyond), marks=False, dashed=True))
    half = f", n_1/2 {bytes_text(fit.half_size_bytes)}" if math.isfinite(fit.half_size_bytes) else ""
    line = f"alpha {fit.alpha_s * 1e6:.3g} us, beta {fit.beta_s_per_byte * 1e9:.3g} ns/B"
    title = f"{fit.kind}, {fit.world_size} ranks on {fit.cores} cores: {line}"
    ends = (f"{time_text(t)} at {bytes_text(m)}" for m, t in (medians[0], medians[-1]))
    alt = f"{title}{half}. Measured from {' to '.join(ends)}; largest residual {fit.max_residual:.0%}."
    return log_chart(title, series, x_name="message", alt=alt, width=560, height=330)
