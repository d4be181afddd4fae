/* chassis.tensor/1: views, creation and reference counts of tensors, and DLPack in both directions. */
#ifndef CHASSIS_SERVICE_TENSOR_H
#define CHASSIS_SERVICE_TENSOR_H

#include "chassis/abi.h"
#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_TENSOR_ID "chassis.tensor/1"

/* DLPack 1.x, as in dlpack.h; only declared, so that this header needs no other library. */
struct DLManagedTensorVersioned;

/* All [any]. Handles are reference counted: retain gives a second handle to the same tensor. */
typedef struct chassis_tensor_service {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Fills *out, whose struct_size the caller has set. Never fails; for a tensor without plain memory, such as a sparse
   * one, all fields are zero. */
  void (*view)(chassis_tensor_t tensor, chassis_tensor_view_t* out);
  /* Uninitialised, contiguous. RESOURCE_EXHAUSTED names requested and live bytes. */
  chassis_status_t* (*create)(const struct chassis_tensor_service* s, uint32_t dtype, uint32_t device_type,
                              int32_t device_index, uint32_t num_dims, const int64_t* sizes,
                              CHASSIS_OWNED chassis_tensor_t* out);
  /* A contiguous tensor over the caller's memory: releasing the last handle calls `release(context)`. release may be
   * NULL. */
  chassis_status_t* (*from_memory)(const struct chassis_tensor_service* s, void* data, uint32_t dtype,
                                   uint32_t device_type, int32_t device_index, uint32_t num_dims,
                                   const int64_t* sizes, void (*release)(void* context), void* context,
                                   CHASSIS_OWNED chassis_tensor_t* out);
  chassis_status_t* (*retain)(const struct chassis_tensor_service* s, chassis_tensor_t tensor,
                              CHASSIS_OWNED chassis_tensor_t* out);
  /* NULL is allowed. */
  void (*release)(const struct chassis_tensor_service* s, CHASSIS_STOLEN chassis_tensor_t tensor);
  /* The consumer calls the deleter of the result. */
  chassis_status_t* (*to_dlpack)(const struct chassis_tensor_service* s, chassis_tensor_t tensor,
                                 CHASSIS_OWNED struct DLManagedTensorVersioned** out);
  /* Unknown DLPack majors are refused. */
  chassis_status_t* (*from_dlpack)(const struct chassis_tensor_service* s,
                                   CHASSIS_STOLEN struct DLManagedTensorVersioned* dlpack,
                                   CHASSIS_OWNED chassis_tensor_t* out);
} chassis_tensor_service_t;
#define CHASSIS_TENSOR_SERVICE_V1_SIZE 72u

#endif
