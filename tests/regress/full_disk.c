// Preloaded: the disk of checkpoints/ is full for the rank FULL_DISK_RANK once it has written FULL_DISK_BYTES there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_llong written;

static int is_full(int descriptor, size_t count) {
  const char* const full = getenv("FULL_DISK_RANK");
  const char* const rank = getenv("CHASSIS_RANK");
  if (full == NULL || rank == NULL || strcmp(full, rank) != 0) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = '\0';
  if (strstr(path, "/checkpoints/") == NULL) return 0;
  const char* const room = getenv("FULL_DISK_BYTES");
  return atomic_fetch_add(&written, (long long)count) + (long long)count > (room == NULL ? 0 : atoll(room));
}

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  if (is_full(descriptor, count)) return errno = ENOSPC, -1;
  ssize_t (*next)(int, const void*, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
  return next(descriptor, bytes, count, offset);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t count, off_t offset) {
  return pwrite(descriptor, bytes, count, offset);
}
