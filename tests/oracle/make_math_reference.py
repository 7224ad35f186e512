#!/usr/bin/env python3
"""Makes fixtures/math_reference.safetensors with mpmath (200-bit arithmetic).

kvlab has its own exp, sin, cos and RoPE frequencies; this file says what they
should be. Inputs are float32; results are float64, rounded once from the
exact value, so they measure an error of a float32 result to 1e-8 ulp.

    exp.x        F32   inputs; exp.y F64
    sin.x        F32   inputs; sin.y, cos.y F64
    inv_freq.theta F64, inv_freq.dim I32, inv_freq.i I32
    inv_freq.y   F32   theta^(-2 i / dim), correctly rounded
"""

import random
from pathlib import Path

import mpmath
import numpy as np
from safetensors.numpy import save_file

mpmath.mp.prec = 200
OUT = Path(__file__).resolve().parent / "fixtures/math_reference.safetensors"
POINTS = 2000            # random points of each kind
MAX_POSITION = 40960     # Qwen3's max_position_embeddings
THETAS = (1e4, 5e5, 1e6, 5e6)
HEAD_DIMS = (32, 64, 80, 96, 128, 256)
EXP_MAX = 88.72283       # the largest float32 with a finite float32 exp
EXP_SUBNORMAL = -87.33655        # below: the result is subnormal
EXP_ZERO = -103.97208            # below: nearer to 0 than to 2^-149


def neighbours(value, reach=3):
    """The float32 next to a number, and `reach` more on each side."""
    x = np.float32(float(value))
    up = down = x
    result = [x]
    for _ in range(reach):
        up = np.nextafter(up, np.float32(np.inf))
        down = np.nextafter(down, np.float32(-np.inf))
        result += [up, down]
    return result


def distinct(values, low, high):
    """Sorted float32 inputs within [low, high], each once (-0 beside +0)."""
    x = np.array(values, np.float32)
    x = x[(x >= np.float32(low)) & (x <= np.float32(high))]
    x = np.unique(x.view(np.uint32)).view(np.float32)
    return x[np.argsort(x, kind="stable")]


def exp_inputs(rng):
    x = [0.0, -0.0]
    x += list(np.linspace(-104, 0, POINTS))          # softmax's whole range
    x += [rng.uniform(EXP_ZERO, EXP_SUBNORMAL) for _ in range(300)]
    x += [rng.uniform(0, EXP_MAX) for _ in range(400)]
    # Magnitudes from the subnormals up: exp(x) is 1 and then just beside it.
    x += [s * 2.0 ** rng.uniform(-149, 1) for s in (1, -1)
          for _ in range(150)]
    # Range reduction takes x = k ln 2 + r; its seams are at r = 0, +-ln2/2.
    for half in range(-300, 257):
        x += neighbours(half * mpmath.ln2 / 2, reach=1)
    for edge in (EXP_MAX, EXP_SUBNORMAL, EXP_ZERO, -104.0):
        x += neighbours(edge, reach=8)
    x += list(np.linspace(-700, -104, 40))           # float32 result: 0
    return distinct(x, -700, EXP_MAX)


def angle_inputs(rng):
    x = [0.0]
    x += list(np.linspace(0, MAX_POSITION, POINTS))
    x += [2.0 ** rng.uniform(-149, 0) for _ in range(200)]
    x += [float(rng.randrange(MAX_POSITION + 1)) for _ in range(300)]
    # Angles as RoPE makes them: position times frequency, in float32.
    for _ in range(POINTS // 2):
        theta, dim = rng.choice(THETAS), rng.choice(HEAD_DIMS)
        frequency = np.float32(theta ** (-2 * rng.randrange(dim // 2) / dim))
        position = np.float32(rng.randrange(MAX_POSITION))
        x.append(position * frequency)
    # The hard ones: float32 numbers closest to multiples of pi/2, where sin
    # or cos is nearly 0 and its relative error shows every bit that range
    # reduction lost; and the octant seams, multiples of pi/4.
    quarter = mpmath.pi / 2
    last = int(MAX_POSITION / quarter)
    distance = {k: abs(mpmath.mpf(float(np.float32(float(k * quarter))))
                       - k * quarter) for k in range(1, last + 1)}
    for k in sorted(distance, key=distance.get)[:500]:
        x.append(float(k * quarter))
    for k in [*range(1, 65), *rng.sample(range(65, last), 60)]:
        x += neighbours(k * quarter, reach=1)
    for k in [*range(1, 65, 2), *(2 * rng.randrange(last) + 1
                                  for _ in range(60))]:
        x += neighbours(k * quarter / 2, reach=1)
    return distinct(x, 0, MAX_POSITION)


def exact(function, inputs):
    return np.array([float(function(mpmath.mpf(float(x)))) for x in inputs])


def round_to_f32(value):
    """One rounding, to 24 bits: going by float64 could round twice."""
    with mpmath.workprec(24):
        return np.float32(float(+value))


def main():
    rng = random.Random(20)
    tensors = {}
    x = tensors["exp.x"] = exp_inputs(rng)
    tensors["exp.y"] = exact(mpmath.exp, x)
    x = tensors["sin.x"] = angle_inputs(rng)
    tensors["sin.y"] = exact(mpmath.sin, x)
    tensors["cos.y"] = exact(mpmath.cos, x)
    rows = [(theta, dim, i) for theta in THETAS for dim in HEAD_DIMS
            for i in range(dim // 2)]
    theta, dim, i = zip(*rows)
    tensors["inv_freq.theta"] = np.array(theta, np.float64)
    tensors["inv_freq.dim"] = np.array(dim, np.int32)
    tensors["inv_freq.i"] = np.array(i, np.int32)
    tensors["inv_freq.y"] = np.array(
        [round_to_f32(mpmath.mpf(t) ** (mpmath.mpf(-2 * i) / d))
         for t, d, i in rows])
    OUT.parent.mkdir(exist_ok=True)
    save_file(tensors, OUT)
    for name in ("exp.x", "sin.x", "inv_freq.y"):
        print(f"{name:12} {len(tensors[name])} points")
    print(f"{OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
