"""Writes tests/golden/safetensors/python.safetensors with the safetensors library, and checks that the
library reads ours.

    python make_safetensors.py DIR            # writes DIR/python.safetensors
    python make_safetensors.py --check FILE   # FILE was written by test_base_safetensors
"""
import struct
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def tensors():
    return {
        "w.second": numpy.arange(12, dtype=numpy.float32).reshape(3, 4) / 8,
        "a.first": numpy.arange(6, dtype=numpy.float16).reshape(2, 3),
        "scalar": numpy.array(2.5, dtype=numpy.float64),
        "empty": numpy.zeros((0, 7), dtype=numpy.float32),
        "ids": numpy.array([1, -2, 3], dtype=numpy.int64),
        "flags": numpy.array([True, False, True]),
        "größe \"x\"": numpy.array([7], dtype=numpy.uint8),
    }


def check(path):
    with safe_open(path, framework="numpy") as f:
        assert f.metadata() == {"format": "pt"}, f.metadata()
    found = load_file(path)
    want = tensors()
    assert set(found) == set(want), sorted(found)
    for name, value in want.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        assert (found[name] == value).all(), name
    with open(path, "rb") as f:
        assert struct.unpack("<Q", f.read(8))[0] % 8 == 0
    print("the library reads", path, "with equal values")


if sys.argv[1] == "--check":
    check(sys.argv[2])
else:
    save_file(tensors(), sys.argv[1] + "/python.safetensors", metadata={"format": "pt", "by": "python"})
