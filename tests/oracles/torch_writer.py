"""Writes files as torch.save() does, without torch: Python's own pickle and zipfile modules, with classes of the same
names. tests/oracles/other_sources.py compares them with torch where torch is installed.
"""

import collections
import io
import pickle
import sys
import types
import zipfile

import numpy as np

STORAGES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage", "U8": "ByteStorage"}


def fake(module, name, **members):
    member = type(name, (), members) if name[0].isupper() else lambda *a: None
    member.__module__, member.__qualname__, member.__name__ = module, name, name
    for part in (module.rpartition(".")[0], module):
        if part and part not in sys.modules:
            sys.modules[part] = types.ModuleType(part)
    setattr(sys.modules[module], name, member)
    return member


def installed():
    try:
        import torch
        return bool(torch.__version__)
    except (ImportError, AttributeError):
        return False


HAS_TORCH = installed()
if not HAS_TORCH:
    REBUILD = fake("torch._utils", "_rebuild_tensor_v2")
    PARAMETER = fake("torch._utils", "_rebuild_parameter")
    TYPES = {dtype: fake("torch", name) for dtype, name in STORAGES.items()}


class Storage:
    def __init__(self, dtype, key, elements):
        self.dtype, self.key, self.elements = dtype, key, elements


class Tensor:
    def __init__(self, storage, offset, shape, strides, parameter=False):
        self.storage, self.offset, self.shape, self.strides, self.parameter = storage, offset, shape, strides, parameter

    def __reduce__(self):
        arguments = (self.storage, self.offset, self.shape, self.strides, False, collections.OrderedDict())
        if self.parameter:
            return PARAMETER, (Tensor(*self.__dict__.values()).plain(), True, collections.OrderedDict())
        return REBUILD, arguments

    def plain(self):
        self.parameter = False
        return self


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, Storage):
            return ("storage", TYPES[value.dtype], value.key, "cpu", value.elements)
        return None


def pickled(value, protocol=2):
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue()


def strides_of(shape):
    strides, step = [], 1
    for d in reversed(shape):
        strides.insert(0, step)
        step *= d
    return tuple(strides)


def archive(pkl, storages, folder="archive", compression=zipfile.ZIP_STORED, byteorder=b"little"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        z.writestr(f"{folder}/data.pkl", pkl)
        z.writestr(f"{folder}/byteorder", byteorder)
        for key, data in storages.items():
            z.writestr(f"{folder}/data/{key}", data)
        z.writestr(f"{folder}/version", "3\n")
    return out.getvalue()


def save(tensors, parameters=False, **options):
    """tensors: name -> (dtype, numpy array). Returns the file."""
    values, storages = collections.OrderedDict(), {}
    for i, (name, (dtype, array)) in enumerate(tensors.items()):
        array = np.ascontiguousarray(array)
        storages[str(i)] = array.tobytes()
        values[name] = Tensor(Storage(dtype, str(i), array.size), 0, array.shape, strides_of(array.shape), parameters)
    values._metadata = collections.OrderedDict({"": {"version": 1}})  # pickled by BUILD, as in torch
    return archive(pickled(values), storages, **options)
