#include "host/train/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "host/plugin/call.hpp"

namespace chassis {
namespace {

volatile sig_atomic_t received = 0, save_wanted = 0, answers = 0;  // a signal handler can reach nothing else
struct sigaction previous_interrupt, previous_terminate, previous_hangup, previous_user1;

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// At once, since the step in progress may take long, or never return from a plugin.
void answer(int number) {
  char call[512];
  write_text(number == SIGINT ? "\nSIGINT" : number == SIGHUP ? "SIGHUP" : "SIGTERM");
  write_text(": stopping after the step in progress");
  if (describe_call(call, sizeof call) != 0) {
    write_text("; waiting for ");
    write_text(call);
  }
  write_text("; Ctrl-C again ends at once\n");
}

void on_signal(int number) {
  if (received && number == SIGINT) _exit(130);
  if (!received && answers) answer(number);
  received = number;
}

void on_save_signal(int) { save_wanted = 1; }

}  // namespace

RunSignals::RunSignals(bool answering) {
  received = 0;
  save_wanted = 0;
  answers = answering;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
  sigaction(SIGHUP, &action, &previous_hangup);
  if (previous_hangup.sa_handler == SIG_IGN) sigaction(SIGHUP, &previous_hangup, nullptr);  // nohup
  action.sa_handler = on_save_signal;
  sigaction(SIGUSR1, &action, &previous_user1);
}

RunSignals::~RunSignals() {
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
  sigaction(SIGHUP, &previous_hangup, nullptr);
  sigaction(SIGUSR1, &previous_user1, nullptr);
}

bool RunSignals::stop_requested() const { return received != 0; }

bool RunSignals::take_save_request() {
  const bool wanted = save_wanted != 0;
  if (wanted) save_wanted = 0;
  return wanted;
}

const char* RunSignals::name() const {
  switch (received) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
  }
  return "";
}

}  // namespace chassis
