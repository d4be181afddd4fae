// A rank of comm_faults_test.cpp. `comm_rank_program spawn N WHAT RANK` starts N ranks, which sum tensors until RANK
// does WHAT.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

#include "host/base/log.hpp"
#include "host/launch/spawn.hpp"
#include "host/plugin/call.hpp"
#include "tests/support/comm_ranks.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

int act(World& world, const std::string& what, int chosen) {
  test::RankPlugins plugins;
  Communicator communicator(plugins.make("comm", "gloo"), world, MeshShape({{"dp", world.size()}}), world.rank(),
                            Device{});
  ProcessGroup& group = communicator.group({});
  const std::array<int64_t, 1> count = {200000};
  const Tensor gradient = Tensor::empty(count, Dtype::f32);
  for (int step = 0; step < 400; ++step) {
    gradient.fill(world.rank() + 1);
    std::vector<Collective> calls(1);
    calls[0].send = calls[0].recv = gradient;
    calls[0].name = "gradient";
    CommHandle work = communicator.start(group, std::move(calls));
    if (world.rank() == chosen && step == 100) {
      if (what == "kill") raise(SIGKILL);
      if (what == "stop") raise(SIGSTOP);
      if (what == "exit") _exit(0);
      if (what == "segfault") raise(SIGSEGV);
      if (what == "fail") throw Error(ExitCode::kOutOfMemory, "out of device memory");
    }
    communicator.wait(work);
    const double wanted = world.size() * (world.size() + 1) / 2;
    if (gradient.data_as<float>()[777] != static_cast<float>(wanted)) throw internal_error("a wrong sum");
  }
  std::printf("rank %d is done\n", world.rank());
  return 0;
}

int run_rank(const std::string& what, int chosen) {
  const Launch launch = discover_launch(process_environment());
  World world(launch, 20s);
  world.set_deadline(4s);
  return world.run([&] { return act(world, what, chosen); });
}

int run_program(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) != "spawn") return run_rank(words.at(0), std::stoi(words.at(1)));
    const std::optional<int> exit_code = run_ranks(std::stoi(words.at(1)));
    return exit_code ? *exit_code : run_rank(words.at(2), std::stoi(words.at(3)));
  } catch (const RemoteError& error) {
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    log::error("{}", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  const int exit_code = chassis::run_program(argc, argv);
  chassis::set_run_is_over();
  return exit_code;
}
