"""What this target cannot say, case by case, with the reason; strict: see tests.harness.check_case.

Measured families are in FAMILIES of test_cases.py.
"""

SPECIAL = "IREE has no such function, and neither torch nor ir.decompositions has a form of it"

LIMITS: dict[str, str] = dict.fromkeys(
    [
        "elementwise/i0",
        "elementwise/erfcx",
        "elementwise/log_ndtr",
        "elementwise/i0e",
        "elementwise/i1",
        "elementwise/erfcx_large",
        "elementwise/log_ndtr_tail",
        "elementwise/polygamma",
        "elementwise/polynomial_beyond_float",
        "elementwise/gcd",
        "elementwise/odd_gamma",
        "elementwise/odd_bessel",
    ],
    SPECIAL,
)
