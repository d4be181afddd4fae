// A rank of spawn_test.cpp and launchers_test.cpp: `rank_program spawn N WHAT …` starts N of `rank_program WHAT …`.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.hpp"
#include "host/launch/spawn.hpp"
#include "host/launch/watchdog.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/call.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

std::atomic<int> num_interrupts = 0;

void print_line(const std::string& line) { (void)!write(STDOUT_FILENO, (line + "\n").data(), line.size() + 1); }

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "unset";
}

void wait_forever(World& world) {
  world.wait_for([] { return false; }, [] { return "nobody failed"; });
}

// Runs on each rank after all have arrived.
int act(World& world, const std::vector<std::string>& words) {
  const std::string& what = words[0];
  const bool chosen = words.size() > 1 && std::stoi(words[1]) == world.rank();
  if (what == "show") {
    const auto ranks = world.exchange("show", std::to_string(world.rank()) + "/" + std::to_string(world.size()));
    print_line(fmt::format("rank {} sees {} … {}, local {}/{}, {} threads, {} cores, at {}, by {}", world.rank(),
                           ranks.front(), ranks.back(), world.launch().local_rank, world.launch().local_world_size,
                           variable("OMP_NUM_THREADS"), world.num_cores(), world.host_address(),
                           world.launch().source));
    return 0;
  }
  if (what == "read") {
    char byte;
    print_line(fmt::format("rank {} read {} bytes", world.rank(), read(STDIN_FILENO, &byte, 1)));
    return 0;
  }
  if (what == "fail") {
    if (chosen) throw Error(ExitCode::kOutOfMemory, "out of device memory").hint("buy more");
    wait_forever(world);
  }
  if (what == "fail-once") {  // only at the first of several starts
    if (chosen && access(words[2].c_str(), F_OK) != 0) {
      close(open(words[2].c_str(), O_WRONLY | O_CREAT, 0644));
      throw Error(ExitCode::kNumeric, "only this time");
    }
    world.barrier("all well");
    print_line(fmt::format("rank {} went on", world.rank()));
    return 0;
  }
  if (what == "die") {
    if (chosen) raise(std::stoi(words[2]));
    wait_forever(world);
  }
  if (what == "leave") {
    if (chosen) _exit(std::stoi(words[2]));
    wait_forever(world);
  }
  if (what == "vanish") {  // by the system call itself; "vanish -1": all ranks
    const PluginCall call(call_site("plugin 'vanishing' 1.0.0"), "step");
    set_current_step(7);
    if (chosen || words[1] == "-1") syscall(SYS_exit_group, 0);
    wait_forever(world);
  }
  if (what == "hang") {  // inside a plugin, while the others wait
    const Watchdog watchdog(world);
    world.set_deadline(5s);
    if (!chosen) world.barrier("all well");
    const PluginCall call(call_site("plugin 'endless' 1.0.0"), "step");
    set_current_step(7);
    std::this_thread::sleep_for(7s);
    return 0;
  }
  if (what == "ignore") {  // the others ignore the failure
    if (chosen) throw Error(ExitCode::kNumeric, "loss is nan");
    std::this_thread::sleep_for(5min);
  }
  if (what == "busy") {  // all ranks sleep under a watchdog
    const Watchdog watchdog(world);
    print_line(fmt::format("rank {} is {}", world.rank(), getpid()));
    std::this_thread::sleep_for(5min);
  }
  if (what == "work") {
    signal(SIGTERM, SIG_IGN);
    print_line(fmt::format("rank {} is {}", world.rank(), getpid()));
    for (int step = 0;; ++step) world.exchange("step", std::to_string(step));
  }
  if (what == "signals") {  // stops as a run does, at the end of the step
    print_line(fmt::format("rank {} is {}", world.rank(), getpid()));
    while (num_interrupts == 0) std::this_thread::sleep_for(5ms);
    std::this_thread::sleep_for(300ms);
    print_line(fmt::format("rank {} heard {}", world.rank(), num_interrupts));
    return static_cast<int>(ExitCode::kStopped);
  }
  if (what == "sleep") {
    print_line(fmt::format("rank {} is {}", world.rank(), getpid()));
    std::this_thread::sleep_for(5min);
  }
  return 1;
}

int run_rank(const std::vector<std::string>& words) {
  if (words[0] == "early" && variable("CHASSIS_RANK") == words[1])
    return std::stoi(words[2]);  // before it meets the others
  if (words[0] == "signals")
    for (int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, [](int) { ++num_interrupts; });
  const Launch launch = discover_launch(process_environment());
  log::set_rank(launch.rank);
  World world(launch, 20s);
  world.set_deadline(60s);
  return world.run([&] { return act(world, words); });
}

}  // namespace
}  // namespace chassis

namespace chassis {
namespace {

int run_program(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) != "spawn") return run_rank(words);
    const std::optional<int> exit_code = run_ranks(std::stoi(words.at(1)));
    return exit_code ? *exit_code : run_rank({words.begin() + 2, words.end()});
  } catch (const RemoteError& e) {
    log::set_level(log::Level::kInfo);
    log::info("stopped: {}", e.what());
    return static_cast<int>(e.code());
  } catch (const Error& e) {
    log::error("{}", e.what());
    return static_cast<int>(e.code());
  }
}

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  const int exit_code = chassis::run_program(argc, argv);
  chassis::set_run_is_over();
  return exit_code;
}
