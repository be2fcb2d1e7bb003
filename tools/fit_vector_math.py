#!/usr/bin/env python3
"""Fits the polynomials of src/core/vector_math.h: weighted least squares on Chebyshev nodes in 50 digits,
then rounded to float32. Prints coefficients from the highest power down and the largest relative error."""
from mpmath import mp, mpf, matrix, lu_solve, cos, pi, exp, log, tanh, erf, erfc, sqrt, log1p
import struct

mp.dps = 50

def to_f32(x):
    return struct.unpack("f", struct.pack("f", float(x)))[0]

def fit(name, target, low, high, degree, weight=lambda x: 1):
    """min Σ (weight · (p(x) - target(x)))² over Chebyshev nodes of [low, high]."""
    n = 40 * (degree + 1)
    nodes = [(low + high) / 2 + (high - low) / 2 * cos(pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    normal, right = matrix(degree + 1, degree + 1), matrix(degree + 1, 1)
    for x in nodes:
        w, powers = mpf(weight(x)) ** 2, [x**i for i in range(degree + 1)]
        for i in range(degree + 1):
            right[i] += w * powers[i] * target(x)
            for j in range(degree + 1):
                normal[i, j] += w * powers[i] * powers[j]
    c = lu_solve(normal, right)
    rounded = [to_f32(c[i]) for i in range(degree + 1)]
    worst = max(abs(weight(x) * (sum(mpf(rounded[i]) * x**i for i in range(degree + 1)) - target(x))) for x in nodes)
    print(f"{name}: {', '.join(f'{v:.9g}f' for v in reversed(rounded))}   // {float(worst):.1e}")

half_ln2 = log(mpf(2)) / 2
# exp(r) = 1 + r + r² p(r)
fit("exp", lambda r: (exp(r) - 1 - r) / r**2 if r else mpf(1) / 2, -half_ln2, half_ln2, 5, lambda r: r * r)
# log(1 + f) = f - f²/2 + f³ p(f), f = m - 1, m in [sqrt(1/2), sqrt(2))
fit("log", lambda f: (log1p(f) - f + f**2 / 2) / f**3 if f else mpf(1) / 3, sqrt(mpf(1) / 2) - 1, sqrt(mpf(2)) - 1, 8,
    lambda f: f**2)
# tanh(x) = x + x³ p(x²), |x| < 0.625
fit("tanh", lambda s: (tanh(sqrt(s)) / sqrt(s) - 1) / s if s else -mpf(1) / 3, mpf("1e-9"), mpf("0.625") ** 2, 5, lambda s: s)
# erf(x) = x + x · p(x²), |x| < 1: p is small beside 1, and so are the errors of its rounded coefficients
fit("erf small", lambda s: erf(sqrt(s)) / sqrt(s) - 1, mpf("1e-12"), mpf(1), 7)
# erfc(x) = exp(p(x)), 1 <= x < 4
fit("erf large", lambda x: log(erfc(x)), mpf(1), mpf(4), 9, lambda x: erfc(x))
