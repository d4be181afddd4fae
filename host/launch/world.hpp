// The processes of a run: how they find each other, agree, and fail together. Texts only, through the store; tensors go
// through the comm backend.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/failure.hpp"
#include "host/launch/launch.hpp"
#include "host/launch/store.hpp"

namespace chassis {

// An error that reached this rank from another one; it is not reported again.
class RemoteError : public Error {
 public:
  using Error::Error;
};

class World {
 public:
  World();  // one process
  // [all-ranks] Blocks until all ranks have come, telling on rank 0 who is missing ("waiting for 3 of 8 ranks: 4, 6,
  // 7") every few seconds; a communication error after `timeout`.
  World(Launch launch, std::chrono::milliseconds timeout);
  // Where this process serves the store, waits until the others have left it: 30 s, or 5 s after a failure.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return launch_.rank; }
  int size() const { return launch_.world_size; }
  const Launch& launch() const { return launch_; }
  // An address of this machine that the other ranks can reach; CHASSIS_HOST_ADDRESS in the environment sets another.
  const std::string& host_address() const { return host_address_; }
  // The cores that this rank may run on, shared evenly with the ranks that may run on the same ones.
  int num_cores() const { return num_cores_; }
  // NULL with one process.
  Store* store() { return store_.get(); }
  // How long ranks wait for each other, and for the process that serves the store, before they give up; [comm]
  // timeout_s.
  void set_deadline(std::chrono::milliseconds deadline);
  std::chrono::milliseconds deadline() const { return deadline_; }

  // [all-ranks] Each rank's text, by rank. `what` names the occasion and need not be unique. Throws as wait_for does.
  std::vector<std::string> exchange(const std::string& what, const std::string& mine);
  void barrier(const std::string& what) { exchange(what, ""); }
  // [all-ranks] If the texts differ all throw, the first rank that differs from rank 0 a config error with the first
  // lines that differ. Equal texts are compared by their hashes.
  void expect_same(const std::string& what, const std::string& mine);
  // [all-ranks] Runs `part` everywhere, which itself does not communicate. If it throws on any rank all throw: a rank
  // that failed its own error, the others that of the lowest rank that failed.
  void together(const std::string& what, const std::function<void()>& part);

  // This rank's part of the run, its result handed through. What it throws ends the other ranks too; an error that only
  // follows from another rank's, such as a connection that closed, gives way to that one, as a RemoteError.
  int run(const std::function<int()>& body);
  // [any] The first failure of a run is what every rank ends with. Does nothing with one process, and for an error that
  // came from another rank.
  void report_failure(const Error& error) noexcept;
  // [any] Throws what another rank has reported, with its exit code: "rank 2: …"; StoreLost, naming whose end it is,
  // where the store is lost. Costs one small request; callers ask at most every 100 ms.
  void throw_if_another_failed();
  // [any] Polls `ready` until true; throws if another rank fails, or a communication error with `late()` as its message
  // when the deadline is over.
  void wait_for(const std::function<bool()>& ready, const std::function<std::string()>& late);

 private:
  void enter();
  void meet(std::chrono::milliseconds timeout);
  std::vector<std::string> await_arrivals(const std::string& mine, std::chrono::milliseconds timeout);
  struct Gathering;
  bool gather(Gathering& gathering);
  void wait_until(std::chrono::steady_clock::time_point end, const std::function<bool()>& ready,
                  const std::function<std::string()>& late);
  void await_cause();
  StoreLost named(const StoreLost& lost) const;
  std::optional<Failure> first_failure() noexcept;
  void leave() noexcept;

  Launch launch_;
  std::string host_address_ = "127.0.0.1";
  int num_cores_ = 1;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Store> store_;
  std::chrono::milliseconds deadline_{std::chrono::minutes(10)};
  uint64_t num_exchanges_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace chassis
