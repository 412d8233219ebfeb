"""PyTorch's attention without cuDNN's, which makes a plan for every new shape, 60 ms each, and keeps it: texts have many lengths."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor


class Unplanned:
    """As long as anybody is within it. The switch is the process's own, so whoever comes first turns it off, and the last one back."""

    def __init__(self) -> None:
        self._lock, self._within, self._before = Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._within += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0:
                torch.backends.cuda.enable_cudnn_sdp(self._before)


UNPLANNED = Unplanned()


def meets_any_shape(x: Tensor) -> bool:
    """Whether texts are read as they come, rather than trained on."""
    return x.is_cuda and not torch.compiler.is_compiling() and not torch.is_grad_enabled()
