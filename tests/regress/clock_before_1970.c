// Loaded before the C library by start_test.cpp: the time of day is 95 years in the past.
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec -= 3000000000;
  return (int)result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec time;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  if (now) *now = time.tv_sec;
  return time.tv_sec;
}
