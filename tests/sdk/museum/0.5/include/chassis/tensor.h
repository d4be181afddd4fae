/* Tensors as they cross the boundary: an opaque handle, and a plain view for plugins without LibTorch. */
#ifndef CHASSIS_TENSOR_H
#define CHASSIS_TENSOR_H

#include "chassis/abi.h"

/* The same as LibTorch's AtenTensorHandle. Never NULL unless a comment says so. Inputs are borrowed, the caller owns
 * outputs; chassis.tensor/1 retains and releases. */
typedef struct AtenTensorOpaque* chassis_tensor_t;

#define CHASSIS_DTYPE_F32 1u
#define CHASSIS_DTYPE_F64 2u
#define CHASSIS_DTYPE_F16 3u
#define CHASSIS_DTYPE_BF16 4u
#define CHASSIS_DTYPE_I64 5u
#define CHASSIS_DTYPE_I32 6u
#define CHASSIS_DTYPE_I16 7u
#define CHASSIS_DTYPE_I8 8u
#define CHASSIS_DTYPE_U8 9u
#define CHASSIS_DTYPE_BOOL 10u

#define CHASSIS_DEVICE_CPU 0u
#define CHASSIS_DEVICE_CUDA 1u
#define CHASSIS_DEVICE_META 2u

/* A borrowed view of a tensor: valid while the handle lives and is not resized. Strides count elements. */
typedef struct chassis_tensor_view {
  uint32_t struct_size;
  uint32_t dtype;        /* CHASSIS_DTYPE_… */
  uint32_t device_type;  /* CHASSIS_DEVICE_… */
  int32_t device_index;  /* 0 on the CPU */
  void* data;            /* first element; NULL on meta or if num_elements is 0 */
  int64_t num_elements;
  uint32_t num_dims;
  uint32_t is_contiguous;
  const int64_t* sizes;
  const int64_t* strides;
} chassis_tensor_view_t;
#define CHASSIS_TENSOR_VIEW_V1_SIZE 56u

#endif
