/* chassis.tokenizer/1: how plugins before 0.4 offer a tokenizer. Frozen; new plugins offer chassis.tokenizer/2
 * (chassis/kind/tokenizer.h), to which the host translates this: such a tokenizer has no files and no chat template. */
#ifndef CHASSIS_KIND_TOKENIZER_1_H
#define CHASSIS_KIND_TOKENIZER_1_H

#include "chassis/status.h"

#define CHASSIS_TOKENIZER_ID "chassis.tokenizer/1"

/* Special ids are -1 if the tokenizer has none. */
typedef struct chassis_tokenizer_info {
  uint32_t struct_size;
  int32_t bos_id;
  int32_t eos_id;
  int32_t pad_id;
  int64_t vocab_size;     /* ids are below this */
  chassis_str_t fingerprint; /* changes whenever some text would get other ids; valid as long as the instance */
} chassis_tokenizer_info_t;
#define CHASSIS_TOKENIZER_INFO_V1_SIZE 40u

typedef struct chassis_tokenizer {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [any] */
  chassis_status_t* (*info)(struct chassis_instance* self, chassis_tokenizer_info_t* out);
  /* [any] Ids of `text`, without special ids. Writes at most `capacity` ids and, if offsets is not NULL, for each the
   * byte where it starts; *count is the total: if it is above capacity, call again with more room. */
  chassis_status_t* (*encode)(struct chassis_instance* self, chassis_str_t text, int32_t* ids, uint64_t* offsets,
                              uint64_t capacity, uint64_t* count);
  /* [any] Bytes of ids without special ids; an incomplete UTF-8 sequence is returned as it is. capacity and *count work
   * as in encode, in bytes. An id outside the vocabulary is OUT_OF_RANGE. */
  chassis_status_t* (*decode)(struct chassis_instance* self, const int32_t* ids, uint64_t num_ids, char* text,
                              uint64_t capacity, uint64_t* count);
} chassis_tokenizer_t;
#define CHASSIS_TOKENIZER_V1_SIZE 32u

#endif
