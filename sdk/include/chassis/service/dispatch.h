/* chassis.dispatch/1: any ATen operator by name, with boxed arguments, without knowing LibTorch. */
#ifndef CHASSIS_SERVICE_DISPATCH_H
#define CHASSIS_SERVICE_DISPATCH_H

#include "chassis/abi.h"
#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_DISPATCH_ID "chassis.dispatch/1"

#define CHASSIS_BOXED_NONE 0u
#define CHASSIS_BOXED_TENSOR 1u
#define CHASSIS_BOXED_INT 2u          /* also dtype arguments: a CHASSIS_DTYPE_… with tag DTYPE instead */
#define CHASSIS_BOXED_FLOAT 3u
#define CHASSIS_BOXED_BOOL 4u
#define CHASSIS_BOXED_STRING 5u       /* list.ptr = bytes, list.len = their number */
#define CHASSIS_BOXED_INT_LIST 6u     /* list.ptr = const int64_t* */
#define CHASSIS_BOXED_FLOAT_LIST 7u   /* list.ptr = const double* */
#define CHASSIS_BOXED_BOOL_LIST 8u    /* list.ptr = const uint8_t* */
#define CHASSIS_BOXED_TENSOR_LIST 9u  /* list.ptr = const chassis_tensor_t* */
#define CHASSIS_BOXED_DTYPE 10u       /* i = CHASSIS_DTYPE_… */

/* An argument or a result. Arguments are borrowed. The caller owns a TENSOR result and the array of a list result:
 * release the array with free_list after releasing its tensors. */
typedef struct chassis_boxed {
  uint32_t tag; /* CHASSIS_BOXED_… */
  uint32_t reserved0;
  union {
    int64_t i;
    double f;
    chassis_tensor_t tensor;
    struct {
      const void* ptr;
      uint64_t len;
    } list;
  } value;
} chassis_boxed_t;

/* An operator looked up once; valid as long as the instance. */
typedef struct chassis_operator chassis_operator_t;

typedef struct chassis_dispatch {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [control] `name` is, for example, "aten::mm" or "aten::add.Tensor". The manifest must list it (op=…) with the
   * schema of the host's LibTorch, which may have more arguments at the end that have defaults; else NOT_FOUND or
   * FAILED_PRECONDITION with both schemas. */
  chassis_status_t* (*find)(const struct chassis_dispatch* d, chassis_str_t name, const chassis_operator_t** out);
  /* [step] Trailing arguments with defaults may be left out; types are checked. num_results must equal the schema's. */
  chassis_status_t* (*call)(const struct chassis_dispatch* d, const chassis_operator_t* op,
                            const chassis_boxed_t* arguments, uint32_t num_arguments, chassis_boxed_t* results,
                            uint32_t num_results);
  /* [any] */
  void (*free_list)(const struct chassis_dispatch* d, CHASSIS_STOLEN chassis_boxed_t* list);
} chassis_dispatch_t;
#define CHASSIS_DISPATCH_V1_SIZE 40u

#endif
