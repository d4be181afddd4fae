#include "host/train/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace chassis {
namespace {

volatile sig_atomic_t received = 0;  // a signal handler can reach nothing else
struct sigaction previous_interrupt, previous_terminate;

void on_signal(int number) {
  if (received && number == SIGINT) _exit(130);
  received = number;
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
}

bool StopSignals::requested() const { return received != 0; }

const char* StopSignals::name() const { return received == SIGINT ? "SIGINT" : received == SIGTERM ? "SIGTERM" : ""; }

}  // namespace chassis
