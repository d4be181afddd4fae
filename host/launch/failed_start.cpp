// The variables may be wrong: numbers that cannot be read are replaced by defaults.
#include "host/launch/failed_start.hpp"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/launch/arrival.hpp"
#include "host/launch/rank_failure.hpp"
#include "host/launch/store.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeToConnect = 2s, kTimeToServe = 5s;

int number_or(const std::optional<std::string>& text, int fallback) {
  int number = 0;
  if (!text) return fallback;
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), number);
  return failure == std::errc() && end == text->data() + text->size() ? number : fallback;
}

void post(Store& store, const std::string& text, ExitCode code) {
  if (!store.find("arrived/all")) post_failure(store, {kNoRank, code, text});
}

// Serves the failure until all other ranks have read it and left, at most for kTimeToServe.
void serve(const std::string& address, int port, int num_ranks, const std::string& text, ExitCode code) {
  const StoreServer server(address, port);
  const std::unique_ptr<Store> store = connect_store(address, port, kTimeToConnect);
  post(*store, text, code);
  for (const auto end = Clock::now() + kTimeToServe; Clock::now() < end && store->add("left", 0) < num_ranks - 1;)
    std::this_thread::sleep_for(20ms);
}

}  // namespace

void tell_waiting_ranks(const Environment& environment, const Error& error) noexcept {
  try {
    const auto rank = environment("RANK"), address = environment("MASTER_ADDR");
    const int port = number_or(environment("MASTER_PORT"), 0), num_ranks = number_or(environment("WORLD_SIZE"), 2);
    if (!rank || !address || port <= 0 || num_ranks < 2 || environment("TORCHELASTIC_RUN_ID")) return;
    log::info("telling the ranks that wait at {}:{}", printable(*address), port);
    const std::string text =
        fmt::format("a process that was started with RANK={} ({}) failed before it joined the others: {}",
                    printable(*rank), process_text(), error.what());
    std::unique_ptr<Store> store;
    try {
      store = connect_store(*address, port, kTimeToConnect);
    } catch (const Error&) {
      return serve(*address, port, num_ranks, text, error.code());
    }
    post(*store, text, error.code());
  } catch (const std::exception&) {  // the others wait for their own deadline
  }
}

}  // namespace chassis
