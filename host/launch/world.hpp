// The ranks of a run: how they find each other, agree, and fail together. Only texts are sent here, through the store;
// tensors go through the comm backend.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/launch.hpp"
#include "host/launch/lifeline.hpp"
#include "host/launch/rank_failure.hpp"
#include "host/launch/store.hpp"

namespace chassis {

// An error that another rank reported; it is not reported again.
class RemoteError : public Error {
 public:
  RemoteError(ExitCode code, std::string message) : Error(code, std::move(message)) { from_another_rank(); }
};

class World {
 public:
  World();  // one process
  // [all-ranks] Blocks until all ranks have arrived. Every few seconds, rank 0 logs which are missing ("waiting for 3
  // of 8 ranks: 4, 6, 7"). Throws a communication error after `timeout`.
  World(Launch launch, std::chrono::milliseconds timeout);
  // If this process serves the store, waits until the others have left it: up to 30 s, or 5 s after a failure.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return launch_.rank; }
  int size() const { return launch_.world_size; }
  const Launch& launch() const { return launch_; }
  // An address of this machine that the other ranks can reach. The environment variable CHASSIS_HOST_ADDRESS sets it.
  const std::string& host_address() const { return host_address_; }
  // This rank's number of cores: those that it may run on, divided by the number of ranks that share any of them.
  int num_cores() const { return num_cores_; }
  // NULL with one process.
  Store* store() { return store_.get(); }
  // How long ranks wait for each other, and for the process that serves the store; [comm] timeout_s.
  void set_deadline(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const { return deadline_; }

  // [all-ranks] Returns the texts of all ranks, by rank. `what` names the operation in messages and need not be unique.
  // Throws like wait_for().
  std::vector<std::string> exchange(const std::string& what, const std::string& mine);
  void barrier(const std::string& what) { exchange(what, ""); }
  // [all-ranks] If the texts differ, all ranks throw. The first rank that differs from rank 0 throws a config error
  // with the first thing that differs: see text_difference(). Only the hashes are sent if the texts are equal.
  void expect_same(const std::string& what, const std::string& mine);
  // [all-ranks] Runs `part` on every rank; it must not communicate. If it throws on any rank, all ranks throw: a rank
  // that failed throws its own error, the others throw that of the lowest rank that failed.
  void run_and_agree(const std::string& what, const std::function<void()>& part);

  // Runs this rank's part of the run and returns its result. An exception ends the other ranks too. If the error only
  // follows from a failure of another rank, such as a closed connection, throws that failure as a RemoteError instead.
  int run(const std::function<int()>& body);
  // [any] True if `error` is a failure that another rank has reported. It is no RemoteError if it came through a plugin
  // of this rank, or if this rank failed in the same way.
  bool is_failure_of_another(const Error& error) noexcept;
  // [any] Reports a failure to the other ranks; every rank ends with the first one of the run. Does nothing with one
  // process, or for an error that came from another rank.
  void report_failure(const Error& error) noexcept;
  // [any] Throws the failure that another rank has reported, with its exit code: "rank 2: …". If the store is lost,
  // throws StoreLost, which names the process that served it. Takes one small request; call it at most every 100 ms.
  void throw_if_another_failed();
  // [any] Tells the other ranks in which call of a plugin this rank is, and for how long; empty: in none for long.
  void say_call(const std::string& call);
  // [any] The text that another rank last passed to say_call(); empty if it has passed none.
  std::string call_of(int rank);
  // [any] Polls `ready` until it returns true. Throws if another rank fails, or a communication error with the message
  // late() after the deadline.
  void wait_for(const std::function<bool()>& ready, const std::function<std::string()>& late);

 private:
  void serve_store();
  void register_rank();
  void hold_lifeline(std::chrono::milliseconds timeout);
  void meet(std::chrono::milliseconds timeout);
  std::vector<std::string> await_arrivals(const std::string& mine, std::chrono::milliseconds timeout);
  struct Gathering;
  bool gather(Gathering& gathering);
  std::string calls_text(const std::vector<int>& ranks);
  void wait_until(std::chrono::steady_clock::time_point end, const std::function<bool()>& ready,
                  const std::function<std::string()>& late);
  void await_cause();
  StoreLost with_server(const StoreLost& lost) const;
  std::optional<RankFailure> first_failure() noexcept;
  std::optional<RankFailure> reported_by_another(
      const Error& error) noexcept;  // that failure, if another rank reported it
  void leave() noexcept;

  Launch launch_;
  std::string host_address_ = "127.0.0.1";
  int num_cores_ = 1;
  std::string server_address_ = "";  // empty: all of this machine
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<LifelineServer> lifelines_;  // only if this process serves the store, which it uses
  std::optional<Lifeline> lifeline_;
  std::chrono::milliseconds deadline_{std::chrono::minutes(10)};
  uint64_t num_exchanges_ = 0;
  std::atomic<bool> failed_ = false;
  bool has_left_ = false;
};

}  // namespace chassis
