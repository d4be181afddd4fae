/* chassis.format/1, kind "format": the layout of checkpoint files, in both directions. The plugin says which bytes are
 * where; the host plans, proves, reads and writes. The plugin sees names, shapes and header bytes, never tensors. */
#ifndef CHASSIS_KIND_FORMAT_H
#define CHASSIS_KIND_FORMAT_H

#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_FORMAT_ID "chassis.format/1"

/* Checksums of 32 bits. */
#define CHASSIS_CHECKSUM_CRC32C 0u /* Castagnoli */
#define CHASSIS_CHECKSUM_CRC32 1u  /* IEEE 802.3, as in ZIP files */

/* A tensor, or one rank's box of it, as stored on disk: contiguous, row-major, little-endian. */
typedef struct chassis_disk_tensor {
  uint32_t struct_size;
  uint32_t dtype;
  chassis_str_t name;           /* as on disk */
  const int64_t* global_shape;  /* of the whole tensor */
  const int64_t* box_offset;    /* where this box starts in it */
  const int64_t* box_shape;     /* and its size; equal to global_shape if whole */
  uint32_t num_dims;
  uint32_t rank;                /* the rank that writes it */
  uint64_t num_bytes;           /* of the box */
} chassis_disk_tensor_t;
#define CHASSIS_DISK_TENSOR_V1_SIZE 64u

typedef struct chassis_disk_pair {
  chassis_str_t key;
  chassis_str_t value;
} chassis_disk_pair_t;

/* All boxes of all ranks to save, in order of declaration, so that every rank computes the same layout. If the files of
 * each rank depend on its own boxes alone, a rank may pass only its own, for its own files. */
typedef struct chassis_save_request {
  uint32_t struct_size;
  uint32_t num_tensors;
  const chassis_disk_tensor_t* const* tensors;
  const chassis_disk_pair_t* metadata; /* free text for headers that can carry it */
  uint32_t num_metadata;
  uint32_t num_ranks;
  uint64_t max_file_bytes;             /* split above this; 0: the format's own limit */
} chassis_save_request_t;
#define CHASSIS_SAVE_REQUEST_V1_SIZE 40u

/* Receives the results of layout(). Paths are relative, without "..". All return a status. */
typedef struct chassis_layout_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* A file of `num_bytes` bytes in total that begins with `header`, written by `rank`. File indexes count from 0. */
  chassis_status_t* (*file)(const struct chassis_layout_sink* s, chassis_str_t path, chassis_str_t header,
                            uint64_t num_bytes, uint32_t rank);
  /* Tensor `tensor` of the request begins at byte `offset` of file `file`. Exactly once for each. */
  chassis_status_t* (*place)(const struct chassis_layout_sink* s, uint32_t tensor, uint32_t file, uint64_t offset);
  /* A small file that rank 0 writes whole, such as an index. */
  chassis_status_t* (*text_file)(const struct chassis_layout_sink* s, chassis_str_t path, chassis_str_t bytes);
} chassis_layout_sink_t;
#define CHASSIS_LAYOUT_SINK_V1_SIZE 40u

/* Receives the results of finish() for one file, once the checksums of its tensors are known. All return a status. */
typedef struct chassis_finish_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Sets bytes of the file from `offset` on: after its header, outside tensors, each byte at most once. Unfilled bytes
   * are zero. */
  chassis_status_t* (*fill)(const struct chassis_finish_sink* s, uint64_t offset, chassis_str_t bytes);
  /* The format's checksum of the file's bytes [offset, offset + num_bytes) as filled so far. The range must not cut a
   * tensor. */
  chassis_status_t* (*checksum)(const struct chassis_finish_sink* s, uint64_t offset, uint64_t num_bytes,
                                uint32_t* out);
} chassis_finish_sink_t;
#define CHASSIS_FINISH_SINK_V1_SIZE 32u

/* The directory that scan() reads: read-only, links not followed. */
typedef struct chassis_directory {
  uint32_t struct_size;
  uint32_t num_files;
  void* impl;
  /* Relative path and size of file i, sorted by path; path stays valid as long as the directory. */
  chassis_status_t* (*entry)(const struct chassis_directory* d, uint32_t i, chassis_str_t* path, uint64_t* num_bytes);
  /* Reads exactly `num_bytes` from `offset` on, or returns DATA_LOSS. */
  chassis_status_t* (*read)(const struct chassis_directory* d, uint32_t i, uint64_t offset, uint64_t num_bytes,
                            void* out);
} chassis_directory_t;
#define CHASSIS_DIRECTORY_V1_SIZE 32u

typedef struct chassis_scan_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* A box that begins at byte `offset` of file `file` (index in the directory). */
  chassis_status_t* (*tensor)(const struct chassis_scan_sink* s, const chassis_disk_tensor_t* tensor, uint32_t file,
                              uint64_t offset);
  chassis_status_t* (*metadata)(const struct chassis_scan_sink* s, chassis_str_t key, chassis_str_t value);
} chassis_scan_sink_t;
#define CHASSIS_SCAN_SINK_V1_SIZE 32u

typedef struct chassis_format {
  uint32_t struct_size;
  /* 1: files hold whole tensors, and a request has only those; ranks write their parts of them in place. 0: each box
   * that a rank holds is stored separately, and a tensor may consist of several. */
  uint32_t whole_tensors;
  /* [io] NULL if the format can only be read. Pure: computes the place of everything and the bytes of headers. Names
   * that the format cannot hold are refused. */
  chassis_status_t* (*layout)(struct chassis_instance* self, const chassis_save_request_t* request,
                              const chassis_layout_sink_t* out);
  /* [io] NULL if the format can only be written, as for exports. Lists every tensor in the directory and trusts no
   * header: DATA_LOSS names file and defect. NOT_FOUND if the directory is not of this format. */
  chassis_status_t* (*scan)(struct chassis_instance* self, const chassis_directory_t* directory,
                            const chassis_scan_sink_t* out);
  /* [io] NULL if a file contains only its header and tensors. Fills the gaps that the layout of this request left
   * between the tensors of file `file` and after them, such as a directory with checksums. */
  chassis_status_t* (*finish)(struct chassis_instance* self, const chassis_save_request_t* request, uint32_t file,
                              const chassis_finish_sink_t* out);
  /* CHASSIS_CHECKSUM_…, used in finish(). */
  uint32_t checksum;
  /* 1: scan() parses more than headers, such as pickles. The host runs it in a separate process, which cannot write and
   * is limited in memory and time. Only an import reads such a format. */
  uint32_t isolated;
} chassis_format_t;
#define CHASSIS_FORMAT_V1_SIZE 40u

#endif
