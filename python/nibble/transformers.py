"""transformers loads checkpoints of Model Optimizer's form with nibble's kernels. Importing this module registers the method:

    import nibble.transformers
    model = transformers.AutoModelForCausalLM.from_pretrained("SmolLM2-135M-NVFP4", dtype="bfloat16")

Linear layers that are quantized in the checkpoint become nibble.torch.CheckpointLinear: codes and scales stay as stored, and
`save_pretrained` writes them again. A KV cache that the checkpoint quantizes stays in the model's type.
"""

from __future__ import annotations

import pathlib
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from . import checkpoint
from ._progress import logger
from .errors import CheckpointError, DeviceError
from .torch import CheckpointLinear

__all__ = ["NibbleQuantizer", "ModelOptConfig"]

_dtypes = {"U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "F32": torch.float32,
           "BF16": torch.bfloat16, "F16": torch.float16}
_METHOD = "modelopt"
_parts = ("weight", "weight_scale", "weight_scale_2", "input_scale")


class ModelOptConfig(QuantizationConfigMixin):
    """The quantization_config of a checkpoint of Model Optimizer's form, kept as it is."""

    def __init__(self, **fields: Any) -> None:
        self.quant_method = _METHOD  # type: ignore[assignment]
        for name, value in fields.items():
            if name != "quant_method":
                setattr(self, name, value)


def _stored(files: list[str]) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of every tensor in the files."""
    found: dict[str, tuple[str, list[int]]] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():
                part = tensors.get_slice(name)
                found[name] = (part.get_dtype(), part.get_shape())
    return found


class NibbleQuantizer(HfQuantizer):
    """Replaces the quantized linear layers of a model before its weights are loaded."""

    requires_calibration = True

    def validate_environment(self, device_map: Any = None, **_: Any) -> None:
        devices = {str(d) for d in (device_map.values() if isinstance(device_map, dict) else [device_map]) if d is not None}
        if devices - {"cpu", "auto"}:
            raise DeviceError(f"nibble.transformers: device_map {sorted(devices)}; this build computes on the CPU only")

    def update_device_map(self, device_map: Any) -> Any:
        return {"": "cpu"} if device_map == "auto" else device_map

    def _process_model_before_weight_loading(self, model: nn.Module, checkpoint_files: list[str] | None = None, **_: Any) -> nn.Module:
        files = [str(f) for f in checkpoint_files or []]
        if not files or not all(f.endswith(".safetensors") for f in files):
            raise CheckpointError("nibble.transformers: the quantized checkpoint has no safetensors files")
        infos, stored = checkpoint.open(pathlib.Path(files[0]).parent), _stored(files)
        quantized = {n.removesuffix(".weight") for n, info in infos.items() if info.quantized}
        for name in sorted(quantized):
            try:
                linear = model.get_submodule(name)
            except AttributeError:
                linear = None
            if type(linear) is not nn.Linear:
                raise CheckpointError(f"nibble.transformers: {name}.weight is quantized, and the model of transformers has no "
                                      "linear layer of this name; experts are not supported, use nibble.LLM")
            info = infos[name + ".weight"]
            buffers = {}
            for part in _parts:
                if f"{name}.{part}" in stored:
                    kind, shape = stored[f"{name}.{part}"]
                    if kind not in _dtypes:
                        raise CheckpointError(f"nibble.transformers: {name}.{part} has type {kind}, which is not supported")
                    buffers[part] = torch.empty(shape, dtype=_dtypes[kind], device="meta")
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last,
                    CheckpointLinear(info.format, (info.shape[0], info.shape[1]), buffers, linear.bias,
                                     None if info.activation == "none" else info.activation))
        if infos.kv_cache not in ("none", ""):
            logger.info("nibble.transformers: the checkpoint's KV cache is %s; transformers keeps the model's type", infos.kv_cache)
            ignored = list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or [])
            model._keys_to_ignore_on_load_unexpected = [*ignored, r"\.(k|v)_(proj\.)?(output_)?scale$"]
        return model

    def is_serializable(self, **_: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True


if _METHOD in AUTO_QUANTIZATION_CONFIG_MAPPING:
    logger.warning("nibble.transformers: transformers knows the method '%s' itself; nibble's kernels are not used", _METHOD)
else:
    register_quantization_config(_METHOD)(ModelOptConfig)
    register_quantizer(_METHOD)(NibbleQuantizer)
