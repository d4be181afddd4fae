// The globals that pickles of ZeRO checkpoints may use, and the meaning of each. All others are refused.
#pragma once

#include <cstdint>
#include <string_view>

#include "chassis/tensor.h"

namespace zero_import {

// The parser's treatment of a global.
enum class Meaning : uint8_t {
  kOrderedDict,
  kSize,
  kRebuildTensor,     // (storage, offset, size, stride, …)
  kRebuildParameter,  // (tensor, …)
  kRebuildFromType,   // (function, type, arguments, state)
  kTensorType,
  kStorageType,
  kDtype,
  kEnum,    // (integer): stands for the integer
  kRecord,  // an object that is kept, but not interpreted
};

struct Global {
  std::string_view module, name;
  Meaning meaning;
  uint32_t dtype = 0;
};

inline constexpr Global kGlobals[] = {
    {"collections", "OrderedDict", Meaning::kOrderedDict},
    {"torch", "Size", Meaning::kSize},
    {"torch", "Tensor", Meaning::kTensorType},
    {"torch.nn.parameter", "Parameter", Meaning::kTensorType},
    {"torch._utils", "_rebuild_tensor_v2", Meaning::kRebuildTensor},
    {"torch._utils", "_rebuild_parameter", Meaning::kRebuildParameter},
    {"torch._tensor", "_rebuild_from_type_v2", Meaning::kRebuildFromType},
    {"torch", "FloatStorage", Meaning::kStorageType, CHASSIS_DTYPE_F32},
    {"torch", "DoubleStorage", Meaning::kStorageType, CHASSIS_DTYPE_F64},
    {"torch", "HalfStorage", Meaning::kStorageType, CHASSIS_DTYPE_F16},
    {"torch", "BFloat16Storage", Meaning::kStorageType, CHASSIS_DTYPE_BF16},
    {"torch", "LongStorage", Meaning::kStorageType, CHASSIS_DTYPE_I64},
    {"torch", "IntStorage", Meaning::kStorageType, CHASSIS_DTYPE_I32},
    {"torch", "ShortStorage", Meaning::kStorageType, CHASSIS_DTYPE_I16},
    {"torch", "CharStorage", Meaning::kStorageType, CHASSIS_DTYPE_I8},
    {"torch", "ByteStorage", Meaning::kStorageType, CHASSIS_DTYPE_U8},
    {"torch", "BoolStorage", Meaning::kStorageType, CHASSIS_DTYPE_BOOL},
    {"torch", "float32", Meaning::kDtype},
    {"torch", "float16", Meaning::kDtype},
    {"torch", "bfloat16", Meaning::kDtype},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum", Meaning::kEnum},
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler", Meaning::kRecord},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", Meaning::kRecord},
    {"deepspeed.utils.tensor_fragment", "fragment_address", Meaning::kRecord},
};

}  // namespace zero_import
