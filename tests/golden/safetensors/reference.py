# Makes reference.safetensors with the reference writer (safetensors 0.8.0). Byte i of a tensor is (7 i + 3) mod 64.
import ctypes
import safetensors

SIZES = {"bfloat16": 2, "float32": 4, "float16": 2, "int64": 8, "bool": 1, "uint8": 1, "int32": 4, "int16": 2, "int8": 1,
         "float64": 8}
TENSORS = {
    "model.embed_tokens.weight": ("bfloat16", [5, 4]),
    "model.layers.0.self_attn.q_proj.weight": ("float32", [3, 2]),
    "model.layers.0.mlp.bias": ("float16", [7]),
    "step": ("int64", []),
    "empty": ("float32", [0, 3]),
    "mask": ("bool", [3]),
    "bytes": ("uint8", [5]),
    "counts": ("int32", [2]),
    "short": ("int16", [1]),
    "signed": ("int8", [2]),
    "double": ("float64", [2]),
    'na\u00efve "name"': ("float32", [1]),
}
specs, buffers = {}, []
for name, (dtype, shape) in TENSORS.items():
    num_bytes = SIZES[dtype]
    for size in shape:
        num_bytes *= size
    data = bytes((7 * i + 3) % 64 for i in range(num_bytes))
    buffers.append(ctypes.create_string_buffer(data, max(num_bytes, 1)))
    specs[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffers[-1]), data_len=num_bytes)
safetensors.serialize_file(specs, "reference.safetensors", {"format": "pt"})
