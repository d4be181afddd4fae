// Preloaded into the program by tests that start it many times (warm_program.hpp). The constructors of LibTorch take a
// quarter of a second; here they run once. In place of main() the process waits for requests, and runs main() in a copy
// of itself for each. A copy is a process like one that was started: it has the arguments, environment, folder and
// output of its request, and no threads yet. The program itself is not changed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>

enum { kMaxRequest = 1 << 17, kMaxWords = 4096, kMaxRuns = 64 };

typedef int (*Main)(int, char**, char**);

static Main program_main;
static struct {
  pid_t id;
  int status;  // descriptor to which the process number and then its exit status are written
} runs[kMaxRuns];
static char request[kMaxRequest];
static char* words[kMaxWords];

static void answer(int descriptor, int value) {
  while (write(descriptor, &value, sizeof value) < 0 && errno == EINTR) {
  }
}

// Reports the processes that have ended.
static void report_ended(int signals) {
  struct signalfd_siginfo information;
  if (read(signals, &information, sizeof information) < 0) return;
  int status = 0;
  for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
    for (int i = 0; i < kMaxRuns; ++i)
      if (runs[i].id == ended) {
        answer(runs[i].status, status);
        close(runs[i].status);
        runs[i].id = 0;
      }
}

// The size of a request, whose descriptor for the status is stored; 0 at the end of the test.
static ssize_t receive(int tests, int* status) {
  struct iovec part = {request, sizeof request - 1};
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  const ssize_t size = recvmsg(tests, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0 || CMSG_FIRSTHDR(&message) == NULL) return 0;
  memcpy(status, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *status);
  request[size] = 0;
  return size;
}

// Serves until the test ends; returns in the copies, with what main() returned.
static int serve(int count, char** arguments, char** environment) {
  const char* const socket = getenv("CHASSIS_TEST_WARM_SOCKET");
  if (socket == NULL) return program_main(count, arguments, environment);
  const int tests = atoi(socket);
  fcntl(tests, F_SETFD, FD_CLOEXEC);
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &before);
  const int signals = signalfd(-1, &child, SFD_CLOEXEC);
  for (;;) {
    struct pollfd waits[2] = {{.fd = tests, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    if (poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) report_ended(signals);
    if (waits[0].revents == 0) continue;
    int status = -1, num_words = 0, free_run = 0;
    const ssize_t size = receive(tests, &status);
    if (size == 0) _exit(0);
    for (char* word = request; word < request + size && num_words < kMaxWords - 2; word += strlen(word) + 1)
      words[num_words++] = word;
    while (free_run < kMaxRuns && runs[free_run].id != 0) ++free_run;
    const pid_t id = free_run < kMaxRuns ? fork() : -1;
    if (id != 0) {
      answer(status, id);
      if (id > 0) {
        runs[free_run].id = id;
        runs[free_run].status = status;
      } else {
        close(status);
      }
      continue;
    }
    // words: folder, file for output, number of arguments, arguments, environment
    sigprocmask(SIG_SETMASK, &before, NULL);
    const int output = open(words[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output), close(tests), close(signals);
    for (int i = 0; i < kMaxRuns; ++i)
      if (runs[i].id != 0) close(runs[i].status);
    close(status);
    if (chdir(words[0]) != 0) _exit(126);
    const int num_arguments = atoi(words[2]);
    memmove(words + 4 + num_arguments, words + 3 + num_arguments,
            sizeof(char*) * (size_t)(num_words - 3 - num_arguments));
    words[3 + num_arguments] = NULL;
    words[num_words + 1] = NULL;
    environ = words + 4 + num_arguments;
    return program_main(num_arguments, words + 3, environ);
  }
}

int __libc_start_main(Main program, int count, char** arguments, void (*begin)(void), void (*end)(void),
                      void (*end_of_loader)(void), void* stack_end) {
  int (*start)(Main, int, char**, void (*)(void), void (*)(void), void (*)(void), void*);
  *(void**)&start = dlsym(RTLD_NEXT, "__libc_start_main");
  program_main = program;
  return start(serve, count, arguments, begin, end, end_of_loader, stack_end);
}
