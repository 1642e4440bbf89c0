"""Epsilon by other libraries, for tests/privacy/test_second_library.py: prv-accountant (bounds) and Opacus (RDP).

    pip install --no-deps prv-accountant==0.2.0 opacus==1.6.0    # in an environment of its own
    python benchmarks/second_accountant.py

Prints one line per case: multiplier, rate, steps, delta, lower bound, upper bound, RDP.
"""

from __future__ import annotations

CASES = [
    *((multiplier, 1.0, steps, 1e-5) for multiplier in (0.8, 1.0, 2.0153, 3.7306) for steps in (1, 3, 10)),
    (2.0, 1.0, 5, 1e-7),
    (1.0, 0.1, 100, 1e-5),
    (1.2, 0.01, 1000, 1e-5),
    (2.0, 0.1, 100, 1e-5),
    (0.9, 0.05, 200, 1e-5),
    (1.0, 0.1, 100, 1e-6),
]
ERROR = 1e-3  # of the bounds


def main() -> None:
    from opacus.accountants import RDPAccountant
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism

    for multiplier, rate, steps, delta in CASES:
        if rate == 1:
            loss = GaussianMechanism(noise_multiplier=multiplier)
        else:
            loss = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=multiplier)
        numeric = PRVAccountant(prvs=[loss], max_self_compositions=[steps], eps_error=ERROR, delta_error=delta / 1000)
        lower, _, upper = numeric.compute_epsilon(delta=delta, num_self_compositions=[steps])
        renyi = RDPAccountant()
        renyi.history = [(multiplier, rate, steps)]
        print(f"({multiplier}, {rate}, {steps}, {delta}, {lower:.5f}, {upper:.5f}, {renyi.get_epsilon(delta):.5f}),")


if __name__ == "__main__":
    main()
