"""Which kernels this machine computes with, as one line: `python -m tests.kernels`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

PRODUCTS = """
import torch
from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits

weight, x = torch.randn(512, 512), torch.randn(64, 512)
if available(FloatProduct):
    FloatProduct(weight, None)(x)
if available(Int8Product):
    Int8Product(weight, None)(x)
capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
print("said", torch.__version__, capability, threads, available(Int8Product), sums_in_32_bits())
"""


def kernels() -> str:
    """PyTorch's own level, what oneDNN said that it ran, whether there is int8, and the threads."""
    watched = os.environ | {"ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", PRODUCTS], env=watched, capture_output=True, text=True, check=True)
    level = re.search(r"cpu,isa:([^\n]*)", done.stdout)
    ran = sorted(set(re.findall(r"exec,cpu,(?:matmul|inner_product),([^,]+)", done.stdout)))
    _, version, capability, threads, int8, wide = re.findall(r"^said .*", done.stdout, re.MULTILINE)[-1].split()
    sums = "sums in 32 bits" if wide == "True" else "sums in 16 bits"
    return "; ".join((
        f"PyTorch {version}, {capability}",
        f"oneDNN {level[1].strip() if level else 'silent'}: {', '.join(ran) or 'nothing'}",
        f"int8 {f'by FBGEMM, {sums}' if int8 == 'True' else 'absent'}",
        f"threads {threads}",
    ))  # fmt: skip


if __name__ == "__main__":
    print(kernels())
