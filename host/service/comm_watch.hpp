// Works that a CUDA stream, not the host, waits for. A thread releases them when they are done. If a work exceeds the
// deadline or a rank fails, the thread aborts their groups, so that neither the stream nor the host waits forever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <memory>
#include <mutex>

#include "chassis/kind/comm.h"
#include "host/base/thread.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/comm_flight.hpp"

namespace chassis {

class StreamWatch {
 public:
  // All arguments outlive it.
  StreamWatch(const Instance& backend, const chassis_comm_backend_t& table, Flights& flights);
  // Releases the works that are left.
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;
  StreamWatch& operator=(const StreamWatch&) = delete;

  // Takes over the work and its flight.
  void add(chassis_backend_work_t* work, chassis_backend_group_t* group, const Flight& flight);
  // Throws the first failure, and throws it again at every further call.
  void throw_if_failed();

 private:
  struct Watched {
    chassis_backend_work_t* work;
    chassis_backend_group_t* group;
    const Flight* flight;
    std::chrono::steady_clock::time_point start;
  };

  void run();
  void release_done();
  void release(const Watched& watched);

  const Instance& backend_;
  const chassis_comm_backend_t& table_;
  Flights& flights_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::list<Watched> works_;  // oldest first
  std::exception_ptr failure_;
  Thread thread_;
};

}  // namespace chassis
