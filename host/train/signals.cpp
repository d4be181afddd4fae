// The signal handlers and their state.
#include "host/train/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "host/base/end_process.hpp"
#include "host/generate/judge.hpp"
#include "host/plugin/call.hpp"

namespace chassis {
namespace {

// Global, since a signal handler has no other access to state.
volatile sig_atomic_t received = 0, save_wanted = 0, answers = 0;
std::atomic<int64_t> saved_step = 0, asked_step = 0;
std::atomic<bool> asked_last = false;
bool save_signal_was_blocked = false;
struct sigaction previous_interrupt, previous_terminate, previous_hangup, previous_quit, previous_user1;

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void write_number(int64_t number) {
  char digits[21] = {};
  size_t first = sizeof digits - 1;
  do digits[--first] = static_cast<char>('0' + number % 10);
  while ((number /= 10) > 0);
  write_text(digits + first);
}

const char* name_of(int number) {
  switch (number) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGQUIT:
      return "SIGQUIT";
  }
  return "";
}

// Replies at once, since the step in progress may take long, or a plugin may not return; CallWatch then reports that.
void answer(int number) {
  if (number == SIGINT || number == SIGQUIT) write_text("\n");  // after the "^C" of the terminal
  write_text(name_of(number));
  if (const int64_t step = current_step(); step > 0) {
    const bool is_asked = asked_step >= step, is_next = is_asked && !asked_last;
    write_text(": stopping after step ");
    write_number(is_next ? step + 1 : step);
    write_text(is_next    ? ", which comes next, and saving it"
               : is_asked ? ", the last one, and saving it"
                          : ", which is in progress, and saving it");
  } else {
    write_text(": stopping before the first step");
  }
  write_text("; Ctrl-C again ends at once\n");
  report_slow_calls_soon();
}

[[noreturn]] void end_at_once() {
  if (answers) {
    write_text("\nSIGINT again: ended at once; ");
    if (saved_step > 0) {
      write_text("the checkpoint of step ");
      write_number(saved_step);
      write_text(current_step() > saved_step ? " is saved, later steps are not\n" : " is saved\n");
    } else {
      write_text(current_step() > 1 ? "no checkpoint is saved, the steps so far are lost\n" : "nothing is saved\n");
    }
  }
  kill_running_judge();
  end_process(130);
}

void on_signal(int number) {
  if (received && number == SIGINT) end_at_once();
  if (!received && answers) answer(number);
  received = number;
}

void on_save_signal(int) { save_wanted = 1; }

// Blocks or unblocks the signal for this thread; returns whether it was blocked before.
bool set_blocked(int number, bool blocked) {
  sigset_t one, before;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &one, &before);
  return sigismember(&before, number) == 1;
}

}  // namespace

RunSignals::RunSignals(bool answering) {
  received = 0;
  save_wanted = 0;
  saved_step = asked_step = 0;
  answers = answering;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
  sigaction(SIGQUIT, &action, &previous_quit);
  sigaction(SIGHUP, &action, &previous_hangup);
  if (previous_hangup.sa_handler == SIG_IGN) sigaction(SIGHUP, &previous_hangup, nullptr);  // nohup
  action.sa_handler = on_save_signal;
  sigaction(SIGUSR1, &action, &previous_user1);
  save_signal_was_blocked = set_blocked(SIGUSR1, false);
}

RunSignals::~RunSignals() {
  set_blocked(SIGUSR1, save_signal_was_blocked);
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
  sigaction(SIGQUIT, &previous_quit, nullptr);
  sigaction(SIGHUP, &previous_hangup, nullptr);
  sigaction(SIGUSR1, &previous_user1, nullptr);
}

void RunSignals::note_saved(int64_t step) { saved_step = step; }

void RunSignals::note_asked(int64_t step, bool is_last) {
  asked_last = is_last;
  asked_step = step;
}

bool RunSignals::stop_requested() const { return received != 0; }

bool RunSignals::take_save_request() {
  const bool wanted = save_wanted != 0;
  if (wanted) save_wanted = 0;
  return wanted;
}

const char* RunSignals::name() const { return name_of(received); }

}  // namespace chassis
