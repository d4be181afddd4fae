/* A CUDA driver that reports CHASSIS_FAKE_GPUS GPUs and offers nothing else. */
#include <stdlib.h>

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuDeviceGetCount(int* count) {
  const char* const value = getenv("CHASSIS_FAKE_GPUS");
  *count = value ? atoi(value) : 0;
  return 0;
}
