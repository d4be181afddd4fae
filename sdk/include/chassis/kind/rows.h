/* chassis.rows/1, kind "rows": files of rows, such as tables, read as one JSON object per row. A member names its files
 * in its manifest, "file=*.parquet".
 *
 * Several files may be open at once. Functions may be called for different files from several threads at once; for one
 * file they are called one after the other, from any thread. Memory is bounded by what the file keeps together (a page,
 * a row), not by the size of the file.
 *
 * Codes: NOT_FOUND, there is no such file; INVALID_ARGUMENT, it is another kind of file, or has values that JSON cannot
 * hold; DATA_LOSS, it is truncated or damaged. Messages name columns, not the file or the row, which the host knows. */
#ifndef CHASSIS_KIND_ROWS_H
#define CHASSIS_KIND_ROWS_H

#include "chassis/status.h"

#define CHASSIS_ROWS_ID "chassis.rows/1"

typedef struct chassis_row_file_info {
  uint32_t struct_size;
  uint32_t reserved0;
  int64_t num_rows; /* -1: not known before the end; other numbers below 0 are an error */
} chassis_row_file_info_t;
#define CHASSIS_ROW_FILE_INFO_V1_SIZE 16u

/* Receives rows in the order of the file, on the calling thread. `json` is one object in UTF-8, without line breaks
 * between its values, borrowed for the call. */
typedef struct chassis_row_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  void (*row)(const struct chassis_row_sink* sink, chassis_str_t json);
} chassis_row_sink_t;
#define CHASSIS_ROW_SINK_V1_SIZE 24u

typedef struct chassis_rows_read {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t num_rows;  /* given by this call; 0: the end of the file */
  uint64_t num_bytes; /* bytes of the file that all rows so far came from, to show progress; never decreases, and is at
                       * most the size of the file; a line end that the last line lacks may be counted */
} chassis_rows_read_t;
#define CHASSIS_ROWS_READ_V1_SIZE 24u

typedef struct chassis_rows {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [any] Opens a file and reads the part that says how its rows are stored. The plugin owns `file`, and gets it back
   * in close. */
  chassis_status_t* (*open)(struct chassis_instance* self, chassis_str_t path, chassis_row_file_info_t* out,
                            CHASSIS_OWNED void** file);
  /* [any] Gives at least 1 and at most max_rows rows, or none at the end. On an error the rows before the faulty one
   * have been given, and only close may follow. */
  chassis_status_t* (*next)(struct chassis_instance* self, void* file, uint64_t max_rows,
                            const chassis_row_sink_t* sink, chassis_rows_read_t* out);
  /* [any] */
  void (*close)(struct chassis_instance* self, CHASSIS_STOLEN void* file);
} chassis_rows_t;
#define CHASSIS_ROWS_V1_SIZE 32u

#endif
